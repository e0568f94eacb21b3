//! Literals: text to tensors on devices and back, against IREE's own parser and printer.

use std::ptr;

use crate::support::{device, session};
use iree_rt::{ElementType, Literal, sys};

/// What IREE's C API makes of `text`: the bytes, and the text that it prints.
fn by_iree(text: &str) -> (Literal, String) {
    let device = device("local-sync");
    let mut raw = ptr::null_mut();
    let mut length = 0;
    let mut printed = vec![0u8; 4096];
    // SAFETY: the device is live; the view is released once, after its last use.
    unsafe {
        let allocator = sys::iree_hal_device_allocator(device.as_raw());
        let text = sys::iree_make_string_view(text);
        let status = sys::iree_hal_buffer_view_parse(text, device.as_raw(), allocator, &mut raw);
        assert!(sys::iree_status_is_ok(status));
        let (rank, dims) =
            (sys::iree_hal_buffer_view_shape_rank(raw), sys::iree_hal_buffer_view_shape_dims(raw));
        let shape = (0..rank).map(|at| *dims.add(at)).collect();
        let mut bytes = vec![0u8; sys::iree_hal_buffer_view_byte_length(raw)];
        let status = sys::iree_hal_buffer_map_read(
            sys::iree_hal_buffer_view_buffer(raw),
            0,
            bytes.as_mut_ptr().cast(),
            bytes.len(),
        );
        assert!(sys::iree_status_is_ok(status));
        let capacity = printed.len();
        let buffer = printed.as_mut_ptr().cast();
        let status = sys::iree_hal_buffer_view_format(raw, 5, capacity, buffer, &mut length);
        assert!(sys::iree_status_is_ok(status));
        let name = text_type(raw);
        sys::iree_hal_buffer_view_release(raw);
        printed.truncate(length);
        (Literal::new(shape, name, bytes).unwrap(), String::from_utf8(printed).unwrap())
    }
}

unsafe fn text_type(raw: *mut sys::iree_hal_buffer_view_t) -> ElementType {
    // SAFETY: by the contract of this function the view is live.
    let code = unsafe { sys::iree_hal_buffer_view_element_type(raw) };
    ElementType::names().filter_map(ElementType::parse).find(|ty| ty.raw() == code).unwrap()
}

#[test]
fn bytes_and_text_are_those_of_iree() {
    for text in [
        "4xf32=1,2,3,4",
        "4xf32=1.25 -1e-20 3.4e38 nan",
        "2x2xi32=[[1 2][3 4]]",
        "2x2x2xi8=[[[1,2],[3,4]],[[5,6],[7,8]]]",
        "3x3xf64=0.1",
        "4xf16=1 0.1 65504 1e-7",
        "4xbf16=1 0.1 3e38 -inf",
        "2xi1=01 00",
        "5xui8=0 1 128 254 255",
        "5xi8=0 -1 -128 127 255",
        "3xi16=0xff 32767 -32768",
        "2xui64=18446744073709551615 0",
        "3xsi64=-9223372036854775808 1 2",
        "3xf8E4M3FN=1 0.5 448",
        "3xf8E5M2=1 -0.5 57344",
        "f32=3.5",
        "i32=-7",
        "6xi32",
        "0xf32=",
        "3x0xf32=",
    ] {
        let literal: Literal = text.parse().unwrap();
        let (expected, printed) = by_iree(text);
        assert_eq!(literal.bytes(), expected.bytes(), "{text}");
        assert_eq!(literal, expected, "{text}");
        if !text.contains("0x") || text.contains("0xff") {
            assert_eq!(literal.format(5).unwrap(), printed, "{text}");
        }
        let again: Literal = literal.to_string().parse().unwrap();
        assert_eq!(again.shape(), literal.shape());
    }
}

#[test]
fn through_a_device_and_a_call() {
    let mut session = session("local-task");
    let add = session.function("kinds.add").unwrap();
    let input = |text: &str| text.parse::<Literal>().unwrap().to_device(session.device()).unwrap();
    let arguments = [input("4xf32=1,2,3,4"), input("4xf32=10")];
    let out = session.call(&add, arguments).unwrap().view(0).unwrap();
    assert_eq!(Literal::read(&out).unwrap().to_string(), "4xf32=11 12 13 14");
    let empty: Literal = "0x4xf32".parse().unwrap();
    let view = empty.to_device(session.device()).unwrap();
    assert_eq!(view.shape(), [0, 4]);
    assert_eq!(Literal::read(&view).unwrap(), empty);
}

#[test]
fn long_tensors_are_cut() {
    let literal: Literal = "2x3xi32=1 2 3 4 5 6".parse().unwrap();
    assert_eq!(literal.format(4).unwrap(), "2x3xi32=[1 2 3][4...]");
    assert_eq!(literal.format(0).unwrap(), "2x3xi32=[...][...]");
    assert_eq!(literal.element(5).unwrap(), "6");
    assert_eq!(literal.element(6).unwrap_err().code(), iree_rt::Code::OutOfRange);
    assert!(literal.element(usize::MAX).is_err());
    // Nor are there tensors of as many dimensions as a text may say.
    let many = "1x".repeat(100_000) + "f32=1";
    let error = many.parse::<Literal>().unwrap_err();
    assert!(error.message().contains("100000 dimensions are too many: 128 at most"), "{error}");
    assert!(("1x".repeat(128) + "f32=1").parse::<Literal>().is_ok());
    // Nobody prints 10^18 pairs of brackets.
    let empty: Literal = "1000000000x1000000000x0xf32".parse().unwrap();
    assert_eq!(empty.to_string(), "1000000000x1000000000x0xf32=");
}

/// Half way between two of f32's is half way between two of f16's no longer.
#[test]
fn numbers_are_rounded_once() {
    let bits = |text: &str| {
        let literal: Literal = text.parse().unwrap();
        u16::from_ne_bytes(literal.bytes().try_into().unwrap())
    };
    assert_eq!(bits("f16=1.00048828125"), 0x3c00);
    assert_eq!(bits("f16=1.00048828125001"), 0x3c01);
    assert_eq!(bits("bf16=1.00390625"), 0x3f80);
    assert_eq!(bits("bf16=1.00390625000001"), 0x3f81);
}

//! Tensors from and to DLPack.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::{device, session};
use dlpark::ffi::{DLDataType, DLDataTypeCode, DLDevice};
use dlpark::metadata::Dynamic;
use dlpark::{DlpackFlags, legacy, versioned};
use iree_rt::{Buffer, BufferView, Code, Device, Element, ElementType, bf16, f16};

fn round_trip<T: Element + PartialEq + std::fmt::Debug>(values: [T; 6], dtype: DLDataType) {
    let device = device("local-sync");
    let view = device.buffer_view(&[2, 3], &values).unwrap();
    let address = view.buffer().host_ptr().unwrap().as_ptr() as usize;
    macro_rules! through {
        ($abi:ident) => {{
            let out: $abi::Dlpack = view.to_dlpack().unwrap();
            let tensor = out.validate().unwrap();
            assert_eq!((tensor.shape(), tensor.dtype()), (&[2, 3][..], dtype));
            assert_eq!(tensor.device(), DLDevice::CPU);
            assert_eq!(tensor.data_ptr() as usize, address);
            // SAFETY: nobody writes.
            let back = unsafe { BufferView::from_dlpack(&device, out) }.unwrap();
            assert_eq!(back.shape(), [2, 3]);
            assert_eq!(back.read::<T>().unwrap(), values);
            // The same memory, there and back.
            assert_eq!(back.buffer().host_ptr().unwrap().as_ptr() as usize, address);
        }};
    }
    through!(versioned);
    through!(legacy);
}

#[test]
fn every_element_type_round_trips_without_a_copy() {
    round_trip([1f32, 2., 3., 4., 5., 6.], DLDataType::F32);
    round_trip([1f64, 2., 3., 4., 5., 6.], DLDataType::F64);
    round_trip([1., 2., 3., 4., 5., 6.].map(f16::from_f32), DLDataType::F16);
    round_trip([1., 2., 3., 4., 5., 6.].map(bf16::from_f32), DLDataType::BF16);
    round_trip([1i8, -2, 3, -4, 5, -6], DLDataType::I8);
    round_trip([1i16, -2, 3, -4, 5, -6], DLDataType::I16);
    round_trip([1i32, -2, 3, -4, 5, -6], DLDataType::I32);
    round_trip([1i64, -2, 3, -4, 5, -6], DLDataType::I64);
    round_trip([true, false, true, true, false, false], DLDataType::BOOL);
    round_trip([1f32, 2., 3., 4., 5., 6.].map(|real| [real, -real]), DLDataType::C64);
    round_trip([1f64, 2., 3., 4., 5., 6.].map(|real| [real, -real]), DLDataType::C128);
    // Unsigned, when the view says so.
    let device = device("local-sync");
    let buffer = device.buffer_view(&[2], &[200u8, 3]).unwrap().buffer();
    let view = buffer.view(&[2], ElementType::UI8).unwrap();
    let out: versioned::Dlpack = view.to_dlpack().unwrap();
    assert_eq!(out.validate().unwrap().dtype(), DLDataType::U8);
    // SAFETY: nobody writes.
    let back = unsafe { BufferView::from_dlpack(&device, out) }.unwrap();
    assert_eq!(back.element_type(), ElementType::I8);
    assert_eq!(back.read::<u8>().unwrap(), [200, 3]);
}

#[test]
fn what_goes_out_keeps_the_memory_and_the_device() {
    let out: versioned::Dlpack = {
        let mut session = session("local-task");
        let add = session.function("kinds.add").unwrap();
        let a = session.device().buffer_view(&[4], &[1f32, 2., 3., 4.]).unwrap();
        let sum = session.call(&add, [&a, &a]).unwrap();
        sum.view(0).unwrap().to_dlpack().unwrap()
    };
    // SAFETY: nobody writes.
    assert_eq!(unsafe { out.validate().unwrap().cpu_slice::<f32>() }.unwrap(), [2., 4., 6., 8.]);
    // A consumer may delete on another thread.
    std::thread::spawn(move || drop(out)).join().unwrap();
}

#[test]
fn an_export_is_a_handle_like_others() {
    let device = device("local-sync");
    let mut view = device.buffer_view(&[2], &[1f32; 2]).unwrap();
    let mut out: versioned::Dlpack = view.to_dlpack().unwrap();
    assert_eq!(view.map_mut::<f32>().unwrap_err().code(), Code::FailedPrecondition);
    assert_eq!(view.write(0, &[2f32]).unwrap_err().code(), Code::FailedPrecondition);
    // SAFETY: nobody else reads or writes now.
    unsafe { out.validate_mut().unwrap().cpu_slice_mut::<f32>().unwrap()[0] = 5. };
    assert_eq!(view.read::<f32>().unwrap(), [5., 1.]);
    drop(out);
    assert!(view.map_mut::<f32>().is_ok());
}

#[test]
fn read_only_memory_says_so() {
    let device = device("local-sync");
    let memory = memmap2::MmapMut::map_anon(64).unwrap().make_read_only().unwrap();
    let view = Buffer::import(&device, memory).unwrap().view(&[16], ElementType::F32).unwrap();
    let error = view.to_dlpack::<dlpark::ffi::DLManagedTensor>().err().unwrap();
    assert_eq!(error.code(), Code::PermissionDenied, "{error}");
    let mut out: versioned::Dlpack = view.to_dlpack().unwrap();
    assert!(out.flags().contains(DlpackFlags::READ_ONLY));
    assert!(out.validate_mut().is_err());
    // SAFETY: nobody writes.
    let mut back = unsafe { BufferView::from_dlpack(&device, out) }.unwrap();
    assert_eq!(back.write(0, &[1f32]).unwrap_err().code(), Code::PermissionDenied);
}

/// Numbers that tell when they are gone.
struct Owner(Vec<u64>, Arc<AtomicUsize>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::SeqCst);
    }
}

/// A tensor of another library: 8 numbers from 0 on, `shift` numbers after an aligned address.
fn foreign(
    shift: usize,
    shape: &[i64],
    strides: &[i64],
    dtype: DLDataType,
    device: DLDevice,
    deleted: &Arc<AtomicUsize>,
) -> versioned::Dlpack {
    let mut owner = Owner(vec![0; 32], deleted.clone());
    let start = owner.0.as_ptr().align_offset(64) + shift;
    for i in 0..8 {
        owner.0[start + i] = i as u64;
    }
    let data = owner.0[start..].as_mut_ptr();
    let mut tensor =
        Dynamic::new(shape, strides).initialize(Box::new(owner)).expect("a good descriptor");
    tensor.set_data(data.cast()).set_dtype(dtype).set_device(device);
    // SAFETY: the owner keeps the data; a lie is refused before it is read.
    unsafe { tensor.finish() }
}

#[test]
fn what_comes_in_is_deleted_once_and_copied_only_if_it_must_be() {
    for (shift, copied) in [(0, false), (1, true)] {
        let deleted = Arc::new(AtomicUsize::new(0));
        let count = || deleted.load(Ordering::SeqCst);
        let tensor = foreign(shift, &[2, 4], &[4, 1], DLDataType::U64, DLDevice::CPU, &deleted);
        let address = tensor.validate().unwrap().data_ptr() as usize;
        let mut view = {
            let device: Device = device("local-task");
            // SAFETY: nobody else has the data.
            unsafe { BufferView::from_dlpack(&device, tensor) }.unwrap()
        };
        assert_eq!(count(), usize::from(copied));
        assert_eq!(view.buffer().host_ptr().unwrap().as_ptr() as usize == address, !copied);
        assert_eq!(view.read::<u64>().unwrap(), [0, 1, 2, 3, 4, 5, 6, 7]);
        view.write(0, &[9u64]).unwrap();
        let other = view.clone();
        drop(view);
        assert_eq!(other.read_range::<u64>(0..1).unwrap(), [9]);
        assert_eq!(count(), usize::from(copied));
        drop(other);
        assert_eq!(count(), 1);
    }
}

#[test]
fn what_cannot_come_in_is_an_error_and_deleted() {
    let device = device("local-sync");
    let deleted = Arc::new(AtomicUsize::new(0));
    let complex = DLDataType::scalar(DLDataTypeCode::COMPLEX, 32);
    let bad = [
        foreign(0, &[4, 2], &[1, 4], DLDataType::U64, DLDevice::CPU, &deleted),
        foreign(0, &[8], &[1], DLDataType::U64, DLDevice::cuda(0), &deleted),
        foreign(0, &[16], &[1], complex, DLDevice::CPU, &deleted),
        foreign(0, &[-1], &[1], DLDataType::U64, DLDevice::CPU, &deleted),
        foreign(0, &[i64::MAX, 4], &[4, 1], DLDataType::U64, DLDevice::CPU, &deleted),
    ];
    let codes = [Code::Unimplemented; 3].into_iter().chain([Code::InvalidArgument; 2]);
    for (tensor, code) in bad.into_iter().zip(codes) {
        // SAFETY: refused before it is read.
        let error = unsafe { BufferView::from_dlpack(&device, tensor) }.unwrap_err();
        assert_eq!(error.code(), code, "{error}");
    }
    assert_eq!(deleted.load(Ordering::SeqCst), 5);
    let empty = foreign(0, &[0, 3], &[3, 1], DLDataType::F32, DLDevice::CPU, &deleted);
    // SAFETY: there is nothing to read.
    let empty = unsafe { BufferView::from_dlpack(&device, empty) }.unwrap();
    assert_eq!((empty.shape(), deleted.load(Ordering::SeqCst)), (&[0, 3][..], 6));
    let out: versioned::Dlpack = empty.to_dlpack().unwrap();
    assert_eq!(out.validate().unwrap().shape(), [0, 3]);
    let scalar: versioned::Dlpack = device.buffer_view(&[], &[7i32]).unwrap().to_dlpack().unwrap();
    // SAFETY: nobody writes.
    let scalar = unsafe { BufferView::from_dlpack(&device, scalar) }.unwrap();
    assert_eq!(scalar.read::<i32>().unwrap(), [7]);
}

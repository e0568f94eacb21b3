//! Tensors of complex numbers, and of elements that share bytes.

use crate::support::{BOTH_CPU_DEVICES, compile, device, module};
use iree_rt::{Buffer, BufferView, CompileOptions, ElementType, Literal, Session, Tensor};

/// Adds numbers of 4 bits, and multiplies complex ones.
const PROGRAM: &str = "
module @narrow {
  func.func @add(%a: tensor<6xi4>, %b: tensor<6xi4>) -> tensor<6xi4> {
    %0 = arith.addi %a, %b : tensor<6xi4>
    return %0 : tensor<6xi4>
  }
  func.func @widen(%a: tensor<6xi4>) -> tensor<6xi32> {
    %0 = arith.extui %a : tensor<6xi4> to tensor<6xi32>
    return %0 : tensor<6xi32>
  }
  func.func @widen2(%a: tensor<8xi2>) -> tensor<8xi32> {
    %0 = arith.extui %a : tensor<8xi2> to tensor<8xi32>
    return %0 : tensor<8xi32>
  }
  func.func @square(%a: tensor<2xcomplex<f32>>) -> tensor<2xcomplex<f32>> {
    %0 = stablehlo.multiply %a, %a : tensor<2xcomplex<f32>>
    return %0 : tensor<2xcomplex<f32>>
  }
}";

fn packed(device: &iree_rt::Device, ty: ElementType, shape: &[usize], bytes: &[u8]) -> BufferView {
    let mut buffer = Buffer::allocate(device, bytes.len()).unwrap();
    buffer.write(0, bytes).unwrap();
    let view = buffer.view(shape, ty).unwrap();
    assert_eq!((view.byte_len(), view.element_type()), (bytes.len(), ty));
    view
}

#[test]
fn programs_take_and_give_them() {
    let options = CompileOptions::default();
    let bytes = compile(PROGRAM, &options);
    for uri in BOTH_CPU_DEVICES {
        let device = device(uri);
        let mut session = Session::builder(&device).module(module(&bytes)).build().unwrap();
        // 1 to 6, the first in the lower bits.
        let a = packed(&device, ElementType::I4, &[6], &[0x21, 0x43, 0x65]);
        let widen = session.function("narrow.widen").unwrap();
        let wide = session.call(&widen, [(&a)]).unwrap().view(0).unwrap();
        assert_eq!(wide.read::<i32>().unwrap(), [1, 2, 3, 4, 5, 6]);
        let add = session.function("narrow.add").unwrap();
        let sum = session.call(&add, [&a, &a]).unwrap().view(0).unwrap();
        assert_eq!((sum.element_type(), sum.byte_len()), (ElementType::I4, 3));
        assert_eq!(Literal::read(&sum).unwrap().bytes(), [0x42, 0x86, 0xCA]);

        let pairs = packed(&device, ElementType::I2, &[8], &[0b11_10_01_00, 0b11_00_01_10]);
        let widen = session.function("narrow.widen2").unwrap();
        let wide = session.call(&widen, [pairs]).unwrap().view(0).unwrap();
        assert_eq!(wide.read::<i32>().unwrap(), [0, 1, 2, 3, 2, 1, 0, 3]);

        let square = session.typed::<(Tensor<[f32; 2]>,), Tensor<[f32; 2]>>("narrow.square");
        let square = square.unwrap();
        let a = device.buffer_view(&[2], &[[1f32, 2.], [0., -1.]]).unwrap();
        assert_eq!((a.element_type(), a.byte_len()), (ElementType::CF64, 16));
        let squares = square.call(&mut session, (a.try_into().unwrap(),)).unwrap();
        assert_eq!(squares.read().unwrap(), [[-3., 4.], [-1., 0.]]);
    }
}

#[test]
fn wide_ones_are_filled_and_narrow_ones_counted() {
    let device = device("local-task");
    let mut pairs = BufferView::uninitialized(&device, &[3], ElementType::CF128).unwrap();
    pairs.fill([1f64, -1.]).unwrap();
    assert_eq!(pairs.read::<[f64; 2]>().unwrap(), [[1., -1.]; 3]);
    for (ty, count, bytes) in [
        (ElementType::I4, 1, 1),
        (ElementType::UI4, 4, 2),
        (ElementType::SI2, 5, 2),
        (ElementType::F8E8M0FNU, 3, 3),
    ] {
        let view = BufferView::uninitialized(&device, &[count], ty).unwrap();
        assert_eq!((view.len(), view.byte_len()), (count, bytes), "{ty}");
        let literal = Literal::new(vec![count], ty, vec![0; bytes]).unwrap();
        assert_eq!(literal.to_device(&device).unwrap().byte_len(), bytes, "{ty}");
    }
    assert!(packed(&device, ElementType::I4, &[2], &[0x21]).read::<i8>().is_err());
}

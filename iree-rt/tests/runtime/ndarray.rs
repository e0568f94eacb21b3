//! Tensors from and to arrays.

use crate::support::{device, session};
use iree_rt::{BufferView, Code, Element, bf16, f16};
use ndarray::{Array, Array0, Array3, ArrayD, Axis, s};

fn round_trip<T: Element + PartialEq + std::fmt::Debug>(make: impl Fn(usize) -> T) {
    let device = device("local-sync");
    let array = Array3::from_shape_fn((2, 3, 4), |(i, j, k)| make(i * 12 + j * 4 + k));
    let there = BufferView::from_array(&device, &array).unwrap();
    assert_eq!(there.shape(), [2, 3, 4]);
    assert_eq!(there.element_type(), T::TYPE);
    assert_eq!(there.to_array::<T>().unwrap(), array.clone().into_dyn());
    // Layouts that are not row-major: permuted, strided, backwards.
    let permuted = array.view().permuted_axes([2, 0, 1]);
    let strided = array.slice(s![.., ..;2, 1..;-1]);
    for view in [permuted.into_dyn(), strided.into_dyn()] {
        let there = BufferView::from_array(&device, &view).unwrap();
        assert_eq!(there.to_array::<T>().unwrap(), view);
    }
}

#[test]
fn every_element_type_and_layout_round_trips() {
    round_trip(|i| i as f32);
    round_trip(|i| i as f64);
    round_trip(|i| f16::from_f32(i as f32));
    round_trip(|i| bf16::from_f32(i as f32));
    round_trip(|i| i as i8 - 12);
    round_trip(|i| i as i16 - 12);
    round_trip(|i| i as i32 - 12);
    round_trip(|i| i as i64 - 12);
    round_trip(|i| i as u8);
    round_trip(|i| i as u16);
    round_trip(|i| i as u32);
    round_trip(|i| i as u64);
    round_trip(|i| i % 3 == 0);
}

#[test]
fn scalars_empty_arrays_and_wrong_types() {
    let device = device("local-sync");
    let scalar = BufferView::from_array(&device, &Array0::from_elem((), 7i32)).unwrap();
    assert!(scalar.shape().is_empty());
    assert_eq!(scalar.to_array::<i32>().unwrap(), ndarray::arr0(7).into_dyn());
    let empty = BufferView::from_array(&device, &Array::<f32, _>::zeros((0, 3))).unwrap();
    assert_eq!(empty.to_array::<f32>().unwrap(), ArrayD::<f32>::zeros(vec![0, 3]));
    assert_eq!(scalar.to_array::<f32>().unwrap_err().code(), Code::InvalidArgument);
}

#[test]
fn arrays_are_arguments_and_results() {
    let mut session = session("local-task");
    let add = session.function("kinds.add").unwrap();
    let table = Array::from_shape_fn((4, 2), |(i, j)| (10 * i + j) as f32);
    let column = |j| BufferView::from_array(session.device(), &table.index_axis(Axis(1), j));
    let (a, b) = (column(0).unwrap(), column(1).unwrap());
    let out = session.call(&add, (a, b)).unwrap();
    let sum = out.view(0).unwrap().to_array::<f32>().unwrap();
    assert_eq!(sum, table.sum_axis(Axis(1)).into_dyn());
}

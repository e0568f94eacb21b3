//! Tensors and buffers in place.

use std::thread;
use std::time::{Duration, Instant};

use crate::support::{device, session};
use iree_rt::{Buffer, BufferView, Code, ElementType, Fence, Session, Upload, bf16, f16};

const DEVICES: [&str; 2] = ["local-task", "local-sync"];

/// More than it takes a device to put away a call that has returned.
const SOON: Duration = Duration::from_secs(30);

fn in_use(error: iree_rt::Error) {
    assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
    assert!(error.message().contains("another handle"), "{error}");
}

#[test]
fn a_tensor_is_changed_in_place() {
    for uri in DEVICES {
        let device = device(uri);
        macro_rules! change {
            ($($ty:ty: $from:expr => $to:expr;)*) => {$(
                let (from, to): ($ty, $ty) = ($from, $to);
                let mut view = device.buffer_view(&[3], &[from; 3]).unwrap();
                let mut map = view.map_mut::<$ty>().unwrap();
                assert_eq!(map[..], [from; 3]);
                map[1] = to;
                drop(map);
                assert_eq!(view.read::<$ty>().unwrap(), [from, to, from]);
            )*};
        }
        change! {
            f32: 1. => 2.; f64: 1. => 2.; f16: f16::ONE => f16::ZERO; bf16: bf16::ONE => bf16::ZERO;
            i8: 1 => -2; i16: 1 => -2; i32: 1 => -2; i64: 1 => -2;
            u8: 1 => 2; u16: 1 => 2; u32: 1 => 2; u64: 1 => 2; bool: true => false;
        }
        let mut empty = device.buffer_view(&[0], &[0f64; 0]).unwrap();
        assert!(empty.map_mut::<f64>().unwrap().is_empty());
        let mut buffer = Buffer::allocate(&device, 100).unwrap();
        buffer.map_mut().unwrap().fill(7);
        // SAFETY: nothing writes the buffer.
        assert_eq!(*unsafe { buffer.map() }.unwrap(), [7; 100]);
    }
}

#[test]
fn only_the_one_handle_maps_for_writing() {
    let device = device("local-sync");
    let mut view = device.buffer_view(&[32], &[1f32; 32]).unwrap();
    let clone = view.clone();
    in_use(view.map_mut::<f32>().unwrap_err());
    drop(clone);
    let mut buffer = view.buffer();
    in_use(view.map_mut::<f32>().unwrap_err());
    in_use(buffer.map_mut().unwrap_err());
    let other = BufferView::from_buffer(&buffer, 64, &[4], ElementType::F32).unwrap();
    drop(buffer);
    in_use(view.map_mut::<f32>().unwrap_err());
    // The part alone is not enough, either: the whole has the same bytes.
    let mut other = other;
    in_use(other.map_mut::<f32>().unwrap_err());
    drop(view);
    other.map_mut::<f32>().unwrap()[0] = 2.;
    other.write(2, &[3f32]).unwrap();
    assert_eq!(other.read_range::<f32>(2..3).unwrap(), [3.]);
    assert_eq!(other.read_range::<f32>(0..2).unwrap(), [2., 1.]);

    let whole = Buffer::allocate(&device, 256).unwrap();
    let mut part = whole.subspan(0..128).unwrap();
    let mut rest = whole.subspan(128..256).unwrap();
    drop(whole);
    in_use(part.map_mut().unwrap_err());
    in_use(part.write(0, &[1u8]).unwrap_err());
    in_use(rest.fill(0..4, 0u32).unwrap_err());
    let source = Buffer::allocate(&device, 4).unwrap();
    in_use(rest.copy_from(0, &source, 0, 4).unwrap_err());
    drop(part);
    assert_eq!(rest.map_mut().unwrap().len(), 128);
}

#[test]
fn arguments_and_results_are_shared_while_a_call_holds_them() {
    for uri in DEVICES {
        let mut session = session(uri);
        let add = session.function("kinds.add").unwrap();
        let mut a = session.device().buffer_view(&[4], &[1f32; 4]).unwrap();
        let b = session.device().buffer_view(&[4], &[2f32; 4]).unwrap();
        let mut call = session.prepare(&add).unwrap();
        call.set(0, &a).unwrap();
        call.set(1, &b).unwrap();
        in_use(a.map_mut::<f32>().unwrap_err());
        in_use(a.write(0, &[9f32]).unwrap_err());
        in_use(a.fill(9f32).unwrap_err());
        call.invoke(&mut session).unwrap();
        let mut sum = call.outputs().view(0).unwrap();
        in_use(sum.map_mut::<f32>().unwrap_err());
        drop(call);
        a.map_mut_within::<f32>(SOON).unwrap()[0] = 5.;
        let mut map = sum.map_mut_within::<f32>(SOON).unwrap();
        assert_eq!(map[..], [3.; 4]);
        map[0] = 4.;
        drop(map);
        assert_eq!(sum.read::<f32>().unwrap(), [4., 3., 3., 3.]);
    }
}

#[test]
fn a_forgotten_guard_keeps_the_memory() {
    let mut view = device("local-sync").buffer_view(&[4], &[1f32; 4]).unwrap();
    std::mem::forget(view.map_mut::<f32>().unwrap());
    in_use(view.map_mut::<f32>().unwrap_err());
    assert_eq!(view.read::<f32>().unwrap(), [1.; 4]);
}

/// What a module keeps for itself is not given away.
#[test]
fn state_of_a_session_is_not_mapped() {
    for uri in DEVICES {
        let mut session = session(uri);
        let step = session.function("kinds.step").unwrap();
        let mut count = session.call(&step, [1]).unwrap().view(0).unwrap();
        // Either the module has a copy, or it says that the memory is in use.
        match count.map_mut_within::<i32>(SOON) {
            Ok(mut map) => map[0] = 100,
            Err(error) => in_use(error),
        }
        let count = session.call(&step, [1]).unwrap().view(0).unwrap();
        assert_eq!(count.read::<i32>().unwrap(), [2]);
    }
}

#[test]
fn a_call_in_flight_holds_its_arguments() {
    let options = iree_rt::CompileOptions::default().flag("--iree-execution-model=async-external");
    let source = crate::support::OTHER;
    let device = device("local-task");
    let module = crate::support::module(&crate::support::compile(source, &options));
    let mut session = Session::builder(&device).module(module).build().unwrap();
    let negate = session.function("other.negate").unwrap();
    let mut a = device.buffer_view(&[4], &[1f32; 4]).unwrap();
    let (go, ready) = Fence::new(&device).unwrap();
    let pending = session.call_async(&negate, [&a], Some(&ready)).unwrap();
    in_use(a.map_mut::<f32>().unwrap_err());
    // The call waits, and would compute with what is written now.
    in_use(a.write(0, &[9f32]).unwrap_err());
    in_use(a.fill(9f32).unwrap_err());
    let mut early = pending.early(0).unwrap().into_buffer_view().unwrap();
    in_use(early.map_mut::<f32>().unwrap_err());
    in_use(early.write(0, &[9f32]).unwrap_err());
    let (fence, late) = (pending.fence().clone(), early.clone());
    drop(early);
    drop((pending, session));
    // The result is the last handle of a tensor that is yet to be written.
    let mut early = late;
    in_use(early.map_mut::<f32>().unwrap_err());
    in_use(a.map_mut::<f32>().unwrap_err());
    go.signal().unwrap();
    fence.wait(None).unwrap();
    a.map_mut_within::<f32>(SOON).unwrap()[0] = 3.;
    assert_eq!(early.map_mut_within::<f32>(SOON).unwrap()[..], [-1.; 4]);
}

#[test]
fn mapping_fails_at_once_or_waits_as_long_as_it_is_told() {
    let mut view = device("local-task").buffer_view(&[4], &[1f32; 4]).unwrap();
    let other = view.clone();
    // Who waits does so every time; a thread that others keep from its core is on time the next one.
    let at_once = (0..5).any(|_| {
        let asked = Instant::now();
        in_use(view.map_mut::<f32>().unwrap_err());
        asked.elapsed() < Duration::from_millis(50)
    });
    assert!(at_once, "it waits");
    let asked = Instant::now();
    in_use(view.map_mut_within::<f32>(Duration::from_millis(20)).unwrap_err());
    assert!(asked.elapsed() >= Duration::from_millis(20));
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(20));
            drop(other);
        });
        view.map_mut_within::<f32>(SOON).unwrap()[0] = 2.;
    });
    let mut buffer = view.buffer();
    drop(view);
    assert_eq!(buffer.map_mut_within(SOON).unwrap().len(), 16);
}

#[test]
fn wrong_types_and_read_only_memory_are_errors() {
    let device = device("local-sync");
    let mut view = device.buffer_view(&[4], &[1i32; 4]).unwrap();
    assert_eq!(view.map_mut::<f32>().unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(view.map_constant::<i32>().unwrap_err().code(), Code::FailedPrecondition);
    let mut buffer = Buffer::allocate(&device, 4).unwrap();
    buffer.write(0, &[1u8, 0, 2, 1]).unwrap();
    let mut view = buffer.view(&[4], ElementType::BOOL).unwrap();
    drop(buffer);
    assert_eq!(view.map_mut::<bool>().unwrap_err().code(), Code::DataLoss);

    let memory = memmap2::MmapMut::map_anon(64).unwrap().make_read_only().unwrap();
    let mut view = Buffer::import(&device, memory).unwrap().view(&[16], ElementType::F32).unwrap();
    assert_eq!(view.map_mut::<f32>().unwrap_err().code(), Code::PermissionDenied);
    assert_eq!(*view.map_constant::<f32>().unwrap(), [0.; 16]);
    let nothing = Buffer::import(&device, Vec::new()).unwrap();
    let nothing = nothing.view(&[0], ElementType::F32).unwrap();
    assert_eq!(*nothing.map_constant::<f32>().unwrap(), [0.; 0], "weights of which there are none");
    let clone = view.clone();
    let (left, right) = (view.map_constant::<f32>().unwrap(), clone.map_constant::<f32>().unwrap());
    assert_eq!(left.as_ptr(), right.as_ptr());
    // An upload was given over: it is memory like any other.
    let mut upload = Upload::new(&device, 64).unwrap().finish().unwrap();
    upload.map_mut().unwrap()[0] = 1;
}

#[test]
fn guards_move_between_threads() {
    let mut view = device("local-task").buffer_view(&[4], &[1f32; 4]).unwrap();
    let mut map = view.map_mut::<f32>().unwrap();
    thread::scope(|scope| {
        let (left, right) = map.split_at_mut(2);
        scope.spawn(|| left.fill(2.));
        scope.spawn(|| right.fill(3.));
    });
    thread::scope(|scope| drop(scope.spawn(|| drop(map))));
    assert_eq!(view.read::<f32>().unwrap(), [2., 2., 3., 3.]);
}

//! What needs a GPU: `cargo test -p iree-rt --features cuda --test cuda -- --ignored`, with a
//! runtime of `cargo xtask fetch-iree --cuda`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream};
use iree_rt::buffer::ALIGNMENT;
use iree_rt::cuda::{Gpu, Options, SharedSlice};
use iree_rt::{
    Buffer, BufferView, Code, Device, DeviceOptions, ElementType, Instance, Memory, Session,
    Staging,
};

use crate::support::{compile, device, module};
use crate::{ADD, for_target};

/// Tests measure what memory is free: one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static GPU: Mutex<()> = Mutex::new(());
    GPU.lock().unwrap_or_else(PoisonError::into_inner)
}

fn gpu() -> Device {
    device("cuda")
}

fn stream() -> Arc<CudaStream> {
    CudaContext::new(0).unwrap().default_stream()
}

fn session(device: &Device) -> Session {
    let target = Gpu::of(device).unwrap().unwrap().target().unwrap();
    let bytes = compile(ADD, &for_target(target.flags()));
    Session::builder(device).module(module(&bytes)).build().unwrap()
}

fn add(session: &mut Session, a: &BufferView, b: &BufferView) -> BufferView {
    let add = session.function("gate.add").unwrap();
    session.call(&add, (a, b)).unwrap().view(0).unwrap()
}

#[test]
#[ignore = "needs a GPU"]
fn a_gpu_is_described_and_opened_by_any_name() {
    let _alone = alone();
    let gpus = Gpu::all().unwrap();
    let first = &gpus[0];
    assert!(!first.name.is_empty() && first.driver >= (11, 6), "{first:?}");
    for uri in ["cuda", "cuda://", "cuda://0", &first.uri()] {
        let device = device(uri);
        assert!(device.is_cuda() && !device.is_local());
        assert_eq!(Gpu::of(&device).unwrap().as_ref(), Some(first), "{uri}");
    }
    for uri in [format!("cuda://{}", gpus.len()), "cuda://GPU-ff".to_owned()] {
        assert_eq!(Gpu::at(&uri).unwrap_err().code(), Code::NotFound, "{uri}");
        assert!(Instance::get().unwrap().device(&uri).is_err(), "{uri}");
    }
    let drivers = Instance::get().unwrap().drivers().unwrap();
    let listed = drivers.iter().find(|driver| driver.name == "cuda").unwrap().devices().unwrap();
    assert_eq!(listed[0].uri.to_lowercase(), first.uri().to_lowercase());
}

#[test]
#[ignore = "needs a GPU"]
fn what_does_not_fit_is_refused() {
    let _alone = alone();
    let device = gpu();
    let gpu = Gpu::of(&device).unwrap().unwrap();
    let free = gpu.free_bytes().unwrap();
    assert!(0 < free && free <= gpu.total_bytes);
    device.check_fits(1).unwrap();
    let error = device.check_fits(gpu.total_bytes + 1).unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted);
    let needed = (gpu.total_bytes + 1).to_string();
    assert!(error.message().contains(&needed) && error.message().contains("free"), "{error}");
    // The question leaves the thread as it was.
    device.buffer_view(&[1], &[1f32]).unwrap();
    let error = Buffer::allocate(&device, gpu.total_bytes as usize + (1 << 20)).unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
}

#[test]
#[ignore = "needs a GPU"]
fn calls_run() {
    let _alone = alone();
    let device = gpu();
    let mut session = session(&device);
    let a = device.buffer_view(&[4], &[1f32, 2., 3., 4.]).unwrap();
    let sum = add(&mut session, &a, &a);
    assert_eq!(add(&mut session, &sum, &a).read::<f32>().unwrap(), [3., 6., 9., 12.]);
    let numbers: Vec<f32> = (0..100_000).map(|number| number as f32).collect();
    let mut view = device.buffer_view(&[numbers.len()], &numbers).unwrap();
    assert_eq!(view.to_device(&device).unwrap().read::<f32>().unwrap(), numbers);
    view.write(0, &[0f32; 2]).unwrap();
    assert_eq!(view.read_range::<f32>(1..3).unwrap(), [0., 2.]);
    device.trim().unwrap();
}

#[test]
#[ignore = "needs a GPU"]
fn calls_in_flight_follow_each_other() {
    let _alone = alone();
    let device = gpu();
    let target = Gpu::of(&device).unwrap().unwrap().target().unwrap();
    let options = for_target(target.flags()).flag("--iree-execution-model=async-external");
    let bytes = compile(ADD, &options);
    let mut session = Session::builder(&device).module(module(&bytes)).build().unwrap();
    let add = session.function("gate.add").unwrap();
    let a = device.buffer_view(&[4], &[1f32, 2., 3., 4.]).unwrap();
    let first = session.call_async(&add, [&a, &a], None).unwrap();
    let sum = first.early(0).unwrap();
    let second = session.call_async(&add, (sum, &a), Some(first.fence())).unwrap();
    drop((a, first));
    let out = pollster::block_on(second).unwrap();
    assert_eq!(out.view(0).unwrap().read::<f32>().unwrap(), [3., 6., 9., 12.]);
}

#[test]
#[ignore = "needs a GPU"]
fn any_thread_may_use_and_drop_anything() {
    let _alone = alone();
    let device = gpu();
    let mut session = session(&device);
    let before = Gpu::of(&device).unwrap().unwrap().free_bytes().unwrap();
    let a = thread::scope(|scope| {
        let view = || device.buffer_view(&[4], &[1f32; 4]).unwrap();
        let made: Vec<_> = (0..4).map(|_| scope.spawn(view)).collect();
        made.into_iter().map(|view| view.join().unwrap()).next_back().unwrap()
    });
    let sum = thread::spawn(move || add(&mut session, &a, &a)).join().unwrap();
    assert_eq!(sum.read::<f32>().unwrap(), [2.; 4]);
    let large = Buffer::allocate(&device, 64 << 20).unwrap();
    thread::spawn(move || drop(large)).join().unwrap();
    let after = Gpu::of(&device).unwrap().unwrap().free_bytes().unwrap();
    assert!(before - after < 64 << 20, "a thread that only drops frees nothing");
    // What a call holds goes with it.
    let mut again = self::session(&device);
    let free = || Gpu::of(&device).unwrap().unwrap().free_bytes().unwrap();
    let before = free();
    let mut call = again.prepare(&again.function("gate.add").unwrap()).unwrap();
    call.set(0, device.buffer_view(&[4], &[1f32; 4]).unwrap()).unwrap();
    thread::spawn(move || drop(call)).join().unwrap();
    let a = device.buffer_view(&[4], &[1f32; 4]).unwrap();
    let function = again.function("gate.add").unwrap();
    let outputs = again.call(&function, [&a, &a]).unwrap();
    drop(a);
    thread::spawn(move || drop(outputs)).join().unwrap();
    assert!(free() >= before, "{} bytes before and {} after", before, free());
    drop(again);
    // The last handle may go on a thread that never used the device.
    drop(device);
    thread::spawn(move || drop(sum)).join().unwrap();
}

#[test]
#[ignore = "needs a GPU"]
fn slices_become_tensors_and_stay_as_long() {
    let _alone = alone();
    let device = gpu();
    let stream = stream();
    let numbers: Vec<f32> = (0..1024).map(|number| number as f32).collect();
    let slice = Arc::new(stream.clone_htod(&numbers).unwrap());
    let mut tensor = BufferView::from_cuda(&device, &[32, 32], slice.clone()).unwrap();
    assert_eq!((tensor.shape(), tensor.element_type()), (&[32, 32][..], ElementType::F32));
    assert_eq!(tensor.read::<f32>().unwrap(), numbers);
    // The same memory, both ways.
    tensor.write(0, &[-1f32]).unwrap();
    assert_eq!(stream.clone_dtoh(&*slice).unwrap()[..2], [-1., 1.]);
    let part = BufferView::from_buffer(&tensor.buffer(), 256, &[4], ElementType::F32).unwrap();
    drop(tensor);
    assert_eq!(Arc::strong_count(&slice), 2);
    let mut session = session(&device);
    assert_eq!(add(&mut session, &part, &part).read::<f32>().unwrap(), [128., 130., 132., 134.]);
    drop((part, session));
    assert_eq!(Arc::strong_count(&slice), 1);
    // One that is given away, and has too few elements.
    let slice = Arc::try_unwrap(slice).unwrap();
    let error = BufferView::from_cuda::<f32>(&device, &[1025], slice).unwrap_err();
    assert_eq!(error.code(), Code::OutOfRange);
}

#[test]
#[ignore = "needs a GPU"]
fn tensors_become_slices_and_stay_as_long() {
    let _alone = alone();
    let device = gpu();
    let stream = stream();
    let tensor = device.buffer_view(&[4], &[1f32, 2., 3., 4.]).unwrap();
    let mut slice: SharedSlice<f32> = tensor.to_cuda(&stream).unwrap();
    assert_eq!(slice.len(), 4);
    assert_eq!(stream.clone_dtoh(&*slice).unwrap(), [1., 2., 3., 4.]);
    assert_eq!(slice.as_view_mut().err().unwrap().code(), Code::FailedPrecondition);
    drop(tensor);
    stream.memcpy_htod(&[9f32], &mut slice.as_view_mut().unwrap().slice_mut(1..2)).unwrap();
    stream.synchronize().unwrap();
    let tensor = slice.tensor().clone();
    assert_eq!(tensor.read::<f32>().unwrap(), [1., 9., 3., 4.]);
    let mut session = session(&device);
    assert_eq!(add(&mut session, &tensor, &tensor).read::<f32>().unwrap(), [2., 18., 6., 8.]);
    drop((tensor, session, device));
    assert_eq!(stream.clone_dtoh(&*slice).unwrap(), [1., 9., 3., 4.]);
    drop(slice);

    // A part of a buffer starts where it starts.
    let device = gpu();
    let mut whole = Buffer::allocate(&device, 1024).unwrap();
    whole.fill(0..1024, 0u32).unwrap();
    whole.write(256, &[7i32]).unwrap();
    let part = BufferView::from_buffer(&whole, 256, &[1], ElementType::I32).unwrap();
    let slice = part.to_cuda::<i32>(&stream).unwrap();
    assert_eq!(stream.clone_dtoh(&*slice).unwrap(), [7]);
    let whole = whole.export(Memory::Device).unwrap().address();
    assert_eq!(part.buffer().export(Memory::Device).unwrap().address(), whole + 256);
    assert!(whole.is_multiple_of(ALIGNMENT as u64));
}

#[test]
#[ignore = "needs a GPU"]
fn results_are_exported_without_pools_only() {
    let _alone = alone();
    let stream = stream();
    for async_allocations in [true, false] {
        let cuda = Options::default().async_allocations(async_allocations);
        let options = DeviceOptions::default().cuda(cuda);
        let device = Instance::get().unwrap().device_with("cuda", &options).unwrap();
        let a = device.buffer_view(&[4], &[1f32; 4]).unwrap();
        let sum = add(&mut session(&device), &a, &a);
        match sum.to_cuda::<f32>(&stream) {
            Ok(slice) => {
                assert!(!async_allocations);
                assert_eq!(stream.clone_dtoh(&*slice).unwrap(), [2.; 4]);
            }
            Err(error) => {
                assert!(async_allocations, "{error}");
                assert_eq!(error.code(), Code::Unavailable);
                assert!(error.message().contains("to_device"), "{error}");
                let copy = sum.to_device(&device).unwrap();
                let slice = copy.to_cuda::<f32>(&stream).unwrap();
                assert_eq!(stream.clone_dtoh(&*slice).unwrap(), [2.; 4]);
            }
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn what_cannot_be_exchanged_is_refused() {
    let _alone = alone();
    let stream = stream();
    let host = device("local-task");
    let slice: CudaSlice<f32> = stream.clone_htod(&[1f32; 4]).unwrap();
    let error = BufferView::from_cuda(&host, &[4], slice).unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    assert!(error.message().contains("local-task"), "{error}");
    let tensor = host.buffer_view(&[4], &[1f32; 4]).unwrap();
    assert_eq!(tensor.to_cuda::<f32>(&stream).unwrap_err().code(), Code::InvalidArgument);
    let tensor = gpu().buffer_view(&[4], &[1f32; 4]).unwrap();
    assert_eq!(tensor.to_cuda::<i32>(&stream).unwrap_err().code(), Code::InvalidArgument);
}

#[test]
#[ignore = "needs a GPU"]
fn truth_values_are_exchanged_as_bytes_only() {
    let _alone = alone();
    let (device, stream) = (gpu(), stream());
    // As a program may write it: no `bool`.
    let bytes = device.buffer_view(&[2], &[1u8, 3]).unwrap();
    let truths = bytes.buffer().view(&[2], ElementType::BOOL).unwrap();
    let error = truths.to_cuda::<bool>(&stream).unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument, "{error}");
    assert_eq!(stream.clone_dtoh(&*bytes.to_cuda::<u8>(&stream).unwrap()).unwrap(), [1, 3]);
    let slice = stream.clone_htod(&[true, false]).unwrap();
    let error = BufferView::from_cuda(&device, &[2], slice).unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument, "{error}");
    let tensor =
        BufferView::from_cuda(&device, &[2], stream.clone_htod(&[1u8, 0]).unwrap()).unwrap();
    let truths = tensor.buffer().view(&[2], ElementType::BOOL).unwrap();
    assert_eq!(truths.read::<bool>().unwrap(), [true, false]);
}

#[test]
#[ignore = "needs a GPU"]
fn memory_is_counted_in_pools_and_besides_by_all_threads() {
    let _alone = alone();
    let device = gpu();
    let large = Buffer::allocate(&device, 1 << 20).unwrap();
    let a = device.buffer_view(&[4], &[1f32; 4]).unwrap();
    let sum = add(&mut session(&device), &a, &a);
    let live = || device.memory_statistics().device.live();
    let before = live();
    assert!(before >= (1 << 20) + 16, "{before}");
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..1000).for_each(|_| drop(Buffer::allocate(&device, 64).unwrap())));
        }
    });
    assert_eq!(live(), before);
    drop((large, sum));
    assert!(live() < 1 << 20, "{}", live());
}

#[test]
#[ignore = "needs a GPU"]
fn host_memory_is_reached_by_the_gpu() {
    let _alone = alone();
    let device = gpu();
    let mut staging = Buffer::allocate_in(&device, 16, Memory::Host).unwrap();
    staging.write(0, &[1f32, 2., 3., 4.]).unwrap();
    let mut there = Buffer::allocate(&device, 16).unwrap();
    there.copy_from(0, &staging, 0, 16).unwrap();
    assert_eq!(
        there.view(&[4], ElementType::F32).unwrap().read::<f32>().unwrap(),
        [1., 2., 3., 4.]
    );
}

#[test]
#[ignore = "needs a GPU"]
fn large_buffers_go_up_in_pieces() {
    let _alone = alone();
    let device = gpu();
    let sizes = [1, 20 << 20, 3, 9 << 20, 16 << 20, 4095, 17 << 20];
    let mut staging = Staging::new(&device, sizes.iter().sum()).unwrap();
    let mut expected = Vec::new();
    for (i, size) in sizes.into_iter().enumerate() {
        let place = staging.next(size).unwrap();
        for (at, byte) in place.iter_mut().enumerate().step_by(2) {
            *byte = (at ^ (i * 31)) as u8;
        }
        expected.extend_from_slice(place);
    }
    let buffer = staging.finish().unwrap();
    let mut actual = vec![0; expected.len()];
    buffer.read_into(0, &mut actual).unwrap();
    assert!(actual == expected);
}

//! Reads and writes as futures.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use crate::support::{BOTH_CPU_DEVICES, device, session};
use iree_rt::{Buffer, BufferView, Code, DeviceOptions, ElementType, Instance, Session};

/// More than any of the transfers takes.
const SOON: Duration = Duration::from_secs(30);

#[test]
fn what_is_written_is_read() {
    pollster::block_on(async {
        for uri in BOTH_CPU_DEVICES {
            let device = device(uri);
            let tensor = device.buffer_view(&[4], &[1i32, 2, 3, 4]).unwrap();
            let tensor = tensor.write_async(1, vec![-2, -3]).await.unwrap();
            assert_eq!(tensor.read_async::<i32>().await.unwrap(), [1, -2, -3, 4]);
            let empty = device.buffer_view(&[0], &[0f32; 0]).unwrap();
            let empty = empty.write_async(0, [0f32; 0]).await.unwrap();
            assert!(empty.read_async::<f32>().await.unwrap().is_empty());

            let buffer = Buffer::allocate(&device, 1 << 20).unwrap();
            let bytes: Vec<u8> = (0..1 << 20).map(|at| (at % 251) as u8).collect();
            let buffer = buffer.write_async(0, bytes.clone()).await.unwrap();
            let buffer = buffer.write_async(4, [7u32]).await.unwrap();
            let part = buffer.read_async(2..1000).await.unwrap();
            assert_eq!((&part[..2], &part[2..6]), (&bytes[2..4], &[7, 0, 0, 0][..]));
            assert_eq!(part[6..], bytes[8..1000]);
        }
    });
}

#[test]
fn results_are_read_on_the_only_worker() {
    let options = DeviceOptions::default().threads(1);
    let device = Instance::get().unwrap().device_with("local-task", &options).unwrap();
    let kinds = crate::support::module(crate::support::kinds());
    let mut session = Session::builder(&device).module(kinds).build().unwrap();
    let add = session.function("kinds.add").unwrap();
    let a = device.buffer_view(&[4], &[1f32; 4]).unwrap();
    let sum = session.call(&add, [&a, &a]).unwrap().view(0).unwrap();
    pollster::block_on(async {
        assert_eq!(sum.read_async::<f32>().await.unwrap(), [2.; 4]);
        // The call has returned a moment ago, and may hold it still.
        let sum = sum.write_async(0, [5f32]).await.unwrap();
        assert_eq!(sum.read_async::<f32>().await.unwrap(), [5., 2., 2., 2.]);
    });
}

#[test]
fn errors_are_those_of_the_blocking_ones() {
    pollster::block_on(async {
        let device = device("local-task");
        let tensor = || device.buffer_view(&[4], &[1f32; 4]).unwrap();
        let code = |result: iree_rt::Result<BufferView>| result.unwrap_err().code();
        let error = tensor().read_async::<i32>().await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        assert_eq!(code(tensor().write_async(0, [1i32]).await), Code::InvalidArgument);
        assert_eq!(code(tensor().write_async(4, [1f32]).await), Code::OutOfRange);
        let (one, _other) = (tensor(), tensor());
        let clone = one.clone();
        assert_eq!(code(one.write_async(0, [1f32]).await), Code::FailedPrecondition);
        assert_eq!(clone.read::<f32>().unwrap(), [1.; 4]);

        let memory = memmap2::MmapMut::map_anon(64).unwrap().make_read_only().unwrap();
        let constant = Buffer::import(&device, memory).unwrap();
        assert_eq!(constant.read_async(0..64).await.unwrap(), [0; 64]);
        assert_eq!(constant.read_async(60..65).await.unwrap_err().code(), Code::OutOfRange);
        let error = constant.write_async(0, [1u8]).await.unwrap_err();
        assert_eq!(error.code(), Code::PermissionDenied);

        let mut bools = Buffer::allocate(&device, 1).unwrap();
        bools.write(0, &[2u8]).unwrap();
        let bools = bools.view(&[1], ElementType::BOOL).unwrap();
        assert_eq!(bools.read_async::<bool>().await.unwrap_err().code(), Code::DataLoss);
    });
}

#[test]
fn a_future_may_be_dropped_while_its_copy_runs() {
    const BYTES: usize = 64 << 20;
    for uri in BOTH_CPU_DEVICES {
        let device = device(uri);
        let mut context = Context::from_waker(Waker::noop());
        let mut buffer = Buffer::allocate(&device, BYTES).unwrap();
        buffer.fill(0..BYTES, 3u8).unwrap();
        // One that was never polled holds its handle, and gives it back.
        let never = buffer.read_async(0..BYTES);
        assert_eq!(buffer.map_mut().unwrap_err().code(), Code::FailedPrecondition);
        drop(never);
        {
            let mut reading = pin!(buffer.read_async(0..BYTES));
            let _ = reading.as_mut().poll(&mut context);
        }
        // The worker copies what nobody wants; until then it is a handle.
        assert_eq!(buffer.map_mut_within(SOON).unwrap()[BYTES - 1], 3);
        {
            let mut writing = pin!(buffer.write_async(0, vec![4u8; BYTES]));
            let _ = writing.as_mut().poll(&mut context);
        }
        // The last handle of the device waits for its work, or a worker lets go of it.
        drop(device);
    }
}

#[test]
fn futures_go_to_other_threads() {
    fn check<T: Send + 'static>(future: T) -> T {
        future
    }
    let mut session = session("local-task");
    let tensor = session.device().buffer_view(&[4], &[1f32; 4]).unwrap();
    let reading = check(tensor.read_async::<f32>());
    let read = std::thread::spawn(move || pollster::block_on(reading)).join().unwrap();
    assert_eq!(read.unwrap(), [1.; 4]);
    let add = session.function("kinds.add").unwrap();
    let writing = check(tensor.write_async(0, vec![2f32; 4]));
    let tensor = std::thread::spawn(move || pollster::block_on(writing)).join().unwrap().unwrap();
    let sum = session.call(&add, [&tensor, &tensor]).unwrap();
    assert_eq!(sum.view(0).unwrap().read::<f32>().unwrap(), [4.; 4]);
}

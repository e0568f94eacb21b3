//! Calls in flight whose session, device, kernels or tasks are gone before they are done.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Waker};
use std::thread;

use crate::support::in_flight::{LONG, OnWake, SHORT, ends, floats, ones, orphan, session_on};
use crate::support::{compile, device, module};
use iree_rt::{
    Code, CompileOptions, Device, DeviceOptions, Error, Fence, Instance, Kernel, KernelArguments,
    Kernels, Session,
};

#[test]
fn everything_may_be_dropped_while_calls_wait() {
    ends(|| {
        let device = device("local-task");
        let mut session = session_on(&device);
        let double = session.function("later.double").unwrap();
        let (go, ready) = Fence::new(&device).unwrap();
        let pending = session.call_async(&double, [ones(&device)], Some(&ready)).unwrap();
        let awaited = session.call_async(&double, [ones(&device)], Some(&ready)).unwrap();
        let mut polled = Box::pin(awaited);
        assert!(polled.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        drop(device);
        drop(session);
        drop(pending);
        drop(polled);
        drop(ready);
        // Fails the calls: nobody could start them any more. Then the device can go.
        drop(go);
    });
    ends(|| {
        let device = device("local-task");
        let mut session = session_on(&device);
        let double = session.function("later.double").unwrap();
        let (go, ready) = Fence::new(&device).unwrap();
        let mut pending = session.call_async(&double, [ones(&device)], Some(&ready)).unwrap();
        drop((device, session, ready));
        drop(go);
        let error = pending.wait(None).unwrap_err();
        assert_eq!(error.code(), Code::Cancelled, "{error}");
    });
}

#[test]
fn a_call_outlives_its_session_and_module() {
    let (go, pending) = orphan();
    go.signal().unwrap();
    let out = pollster::block_on(pending).unwrap();
    assert_eq!(floats(&out.view(0).unwrap()), [2.; 4]);
}

#[test]
fn a_waker_that_panics_does_no_harm() {
    let (go, pending) = orphan();
    let mut pending = Box::pin(pending);
    let waker = OnWake::waker(|| panic!("in a waker"));
    assert!(pending.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    assert!(catch_unwind(AssertUnwindSafe(|| go.signal())).unwrap().is_ok());
    pending.fence().wait(Some(LONG)).unwrap();
    assert!(pollster::block_on(pending).is_ok());
}

#[test]
fn forgotten_futures_and_signals_do_no_harm() {
    ends(|| {
        let (go, pending) = orphan();
        let mut forgotten = Box::pin(pending.fence().reached());
        assert!(forgotten.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        std::mem::forget(forgotten);
        go.signal().unwrap();
        assert!(pollster::block_on(pending).is_ok());

        let (go, mut pending) = orphan();
        std::mem::forget(go);
        assert_eq!(pending.wait(Some(SHORT)).unwrap_err().code(), Code::DeadlineExceeded);
        drop(pending);
    });
}

/// The graph of the example with fences, on a device whose kernel `scale` is `kernel`.
fn with_kernel(kernel: Kernel) -> (Device, Session) {
    let source = include_str!("../../examples/kernel.mlir");
    let kernels = Kernels::new().with("scale", kernel);
    let options = DeviceOptions::default().kernels(kernels);
    let device = Instance::get().unwrap().device_with("local-task", &options).unwrap();
    let bytes = compile(source, &CompileOptions::default().async_external());
    let session = Session::builder(&device).module(module(&bytes)).build().unwrap();
    (device, session)
}

#[test]
fn a_kernel_fails_its_call_and_those_in_line() {
    let run = |_: &KernelArguments<'_>| Err(Error::new(Code::Unavailable, "not today"));
    let failing = Kernel::new(2, 1, run);
    let (device, mut session) = with_kernel(failing);
    let scale = session.function("gate.scale").unwrap();
    let x = device.buffer_view(&[8], &[0f32; 8]).unwrap();
    let (go, ready) = Fence::new(&device).unwrap();
    let first = session.call_async(&scale, [&x], Some(&ready)).unwrap();
    let argument = first.early(0).unwrap();
    let second = session.call_async(&scale, [argument], Some(first.fence())).unwrap();
    go.signal().unwrap();
    // Everyone who asks is told.
    for pending in [second, first] {
        let fence = pending.fence().clone();
        let errors = [pollster::block_on(pending).unwrap_err(), fence.wait(None).unwrap_err()];
        for error in errors {
            assert_eq!(error.code(), Code::Unavailable, "{error}");
            assert!(error.message().contains("not today"), "{error}");
        }
    }
    let error = session.call(&scale, [x]).unwrap_err();
    assert!(error.message().contains("not today"), "{error}");
}

#[test]
fn everything_may_be_dropped_while_a_kernel_runs() {
    ends(|| {
        let ended = Arc::new(AtomicUsize::new(0));
        let count = ended.clone();
        let (starting, started) = mpsc::channel();
        let starting = Mutex::new(starting);
        let gate = Arc::new(Mutex::new(()));
        let opens = gate.clone();
        let run = move |_: &KernelArguments<'_>| {
            let _ = starting.lock().unwrap().send(());
            drop(opens.lock());
            thread::sleep(SHORT);
            count.fetch_add(1, Ordering::SeqCst);
            Ok(())
        };
        let slow = Kernel::new(2, 1, run);
        let (device, mut session) = with_kernel(slow);
        let scale = session.function("gate.scale").unwrap();
        let x = device.buffer_view(&[8], &[0f32; 8]).unwrap();
        let closed = gate.lock().unwrap();
        let pending = session.call_async(&scale, [x], None).unwrap();
        started.recv().unwrap();
        // The call came back while the device works.
        assert!(!pending.fence().is_reached().unwrap());
        drop(closed);
        drop((pending, session, scale));
        // The last handle of a device waits for its work.
        drop(device);
        assert_eq!(ended.load(Ordering::SeqCst), 4);
    });
}

#[test]
fn a_waker_may_drop_the_last_handle_of_the_device() {
    ends(|| {
        let gate = Arc::new(Mutex::new(()));
        let opens = gate.clone();
        let run = move |_: &KernelArguments<'_>| {
            drop(opens.lock());
            thread::sleep(SHORT);
            Ok(())
        };
        let slow = Kernel::new(2, 1, run);
        let (device, mut session) = with_kernel(slow);
        let scale = session.function("gate.scale").unwrap();
        let x = device.buffer_view(&[8], &[0f32; 8]).unwrap();
        let closed = gate.lock().unwrap();
        let mut pending = Box::pin(session.call_async(&scale, [x], None).unwrap());
        let last = Arc::new(Mutex::new(None));
        let (done, woken) = mpsc::channel();
        let taken = last.clone();
        let waker = OnWake::waker(move || {
            // On a worker thread of this very device.
            drop(taken.lock().unwrap().take());
            done.send(thread::current().id()).unwrap();
        });
        let mut slot = last.lock().unwrap();
        assert!(pending.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        drop(closed);
        drop((device, session, scale, waker));
        *slot = Some(pending);
        drop(slot);
        assert_ne!(woken.recv().unwrap(), thread::current().id());
    });
}

//! Semaphores, fences and calls in flight.

mod support;

use std::future::{Future, IntoFuture};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use iree_rt::{
    BufferView, Code, CompileOptions, Device, DeviceOptions, Error, Fence, Instance, Kernel,
    Kernels, Semaphore, Session, Tensor, Value,
};
use support::{compile, device, module};

/// Long enough for a machine under load, and no longer than a test may take.
const LONG: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(20);

const ASYNC: &str = r#"
module @later {
  func.func @double(%a: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.add %a, %a : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
  func.func @scaled(%a: tensor<2xf32>, %n: i32) -> (tensor<2xf32>, tensor<i32>) {
    %0 = stablehlo.negate %a : tensor<2xf32>
    %1 = tensor.from_elements %n : tensor<i32>
    %2 = stablehlo.add %1, %1 : tensor<i32>
    return %0, %2 : tensor<2xf32>, tensor<i32>
  }
  func.func @nothing() { return }
  func.func @until(%a: tensor<4xf32>, %n: tensor<i32>) -> tensor<4xf32> {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %one = stablehlo.constant dense<1> : tensor<i32>
    %r:2 = stablehlo.while(%i = %zero, %x = %a) : tensor<i32>, tensor<4xf32>
     cond {
      %p = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %p : tensor<i1>
    } do {
      %j = stablehlo.add %i, %one : tensor<i32>
      %y = stablehlo.add %x, %x : tensor<4xf32>
      stablehlo.return %j, %y : tensor<i32>, tensor<4xf32>
    }
    return %r#1 : tensor<4xf32>
  }
}
"#;

fn options() -> CompileOptions {
    CompileOptions::default().flag("--iree-execution-model=async-external")
}

fn later() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    BYTES.get_or_init(|| compile(ASYNC, &options()))
}

fn session_on(device: &Device) -> Session {
    Session::builder(device).module(module(later())).build().unwrap()
}

fn ones(device: &Device) -> Value {
    device.buffer_view(&[4], &[1f32; 4]).unwrap().into()
}

fn floats(view: &BufferView) -> Vec<f32> {
    view.read().unwrap()
}

/// Fails the test when `run` does not end.
fn ends<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, ended) = mpsc::channel();
    let runner = thread::spawn(move || {
        let result = run();
        let _ = done.send(());
        result
    });
    if let Err(mpsc::RecvTimeoutError::Timeout) = ended.recv_timeout(LONG) {
        panic!("hangs");
    }
    runner.join().unwrap()
}

#[test]
fn an_executor_runs_other_tasks_while_a_call_waits() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let device = device("local-task");
        let mut session = session_on(&device);
        let double = session.function("later.double").unwrap();
        let (go, ready) = Fence::new(&device).unwrap();
        let pending = session.call_async(&double, [ones(&device)], Some(&ready)).unwrap();
        let done = pending.fence().clone();
        // On the one thread that there is:
        let other = async {
            for _ in 0..5 {
                tokio::time::sleep(Duration::from_millis(2)).await;
                assert!(!done.is_reached().unwrap());
            }
            go.signal().unwrap();
        };
        let (out, ()) = tokio::join!(pending, other);
        assert_eq!(floats(&out.unwrap().buffer_view(0).unwrap()), [2.; 4]);
        assert!(done.is_reached().unwrap());
    });
}

#[test]
fn many_tasks_of_a_multithreaded_executor_await_calls() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    runtime.block_on(async {
        let device = device("local-task");
        let session = Arc::new(tokio::sync::Mutex::new(session_on(&device)));
        let double = session.lock().await.function("later.double").unwrap();
        let tasks: Vec<_> = (0..50)
            .map(|i| {
                let (session, double, device) = (session.clone(), double.clone(), device.clone());
                tokio::spawn(async move {
                    let a = device.buffer_view(&[4], &[i as f32; 4]).unwrap();
                    let pending = session.lock().await.call_async(&double, [a.into()], None);
                    floats(&pending.unwrap().await.unwrap().buffer_view(0).unwrap())
                })
            })
            .collect();
        for (i, task) in tasks.into_iter().enumerate() {
            assert_eq!(task.await.unwrap(), [2. * i as f32; 4]);
        }
    });
}

#[test]
fn calls_line_up_on_the_device() {
    let device = device("local-task");
    let mut session = session_on(&device);
    let double = session.function("later.double").unwrap();
    assert!(double.coarse_fences());
    assert_eq!(double.arguments().len(), 1);
    let (go, ready) = Fence::new(&device).unwrap();
    let mut last = session.call_async(&double, [ones(&device)], Some(&ready)).unwrap();
    for _ in 0..9 {
        let argument = last.early(0).unwrap();
        last = session.call_async(&double, [argument], Some(&last.fence().clone())).unwrap();
    }
    let late = last.wait(Some(SHORT)).unwrap_err();
    assert_eq!(late.code(), Code::DeadlineExceeded, "{late}");
    assert!(late.message().contains("20ms"), "{late}");
    // Read too early: an error or other bytes, no harm.
    let _ = last.early(0).unwrap().into_buffer_view().unwrap().read::<f32>();
    go.signal().unwrap();
    let out = last.wait(Some(LONG)).unwrap();
    assert_eq!(floats(&out.buffer_view(0).unwrap()), [1024.; 4]);
    assert_eq!(last.wait(None).unwrap_err().code(), Code::FailedPrecondition);
    assert_eq!(last.early(0).unwrap_err().code(), Code::FailedPrecondition);
    assert_eq!(pollster::block_on(last).unwrap_err().code(), Code::FailedPrecondition);
}

#[test]
fn functions_with_fences_are_called_like_others() {
    for uri in ["local-task", "local-sync"] {
        let device = device(uri);
        let mut session = session_on(&device);
        let scaled = session.function("later.scaled").unwrap();
        let a = device.buffer_view(&[2], &[1f32, -2.]).unwrap();
        let out = session.call(&scaled, [(&a).into(), Value::I32(4)]).unwrap();
        assert_eq!(floats(&out.buffer_view(0).unwrap()), [-1., 2.]);
        assert_eq!(out.buffer_view(1).unwrap().read::<i32>().unwrap(), [8]);
        type Both = (Tensor<f32>, Tensor<i32>);
        let typed = session.typed::<(Tensor<f32>, i32), Both>("later.scaled").unwrap();
        let (negated, eight) = typed.call(&mut session, (a.try_into().unwrap(), 4)).unwrap();
        assert_eq!((negated.read().unwrap(), eight.read().unwrap()), (vec![-1., 2.], vec![8]));
        let nothing = session.function("later.nothing").unwrap();
        assert!(session.call(&nothing, []).unwrap().is_empty());
        assert!(pollster::block_on(session.call_async(&nothing, [], None).unwrap()).is_ok());
        let until = session.function("later.until").unwrap();
        let five = device.buffer_view(&[], &[5i32]).unwrap();
        let pending = session.call_async(&until, [ones(&device), five.into()], None).unwrap();
        let out = pollster::block_on(pending).unwrap();
        assert_eq!(floats(&out.buffer_view(0).unwrap()), [32.; 4]);
        let mut call = session.prepare(&session.function("later.double").unwrap()).unwrap();
        let missing = call.invoke_async(&mut session, None).unwrap_err();
        assert_eq!(missing.code(), Code::FailedPrecondition);
        call.set(0, ones(&device)).unwrap();
        let first = call.invoke_async(&mut session, None).unwrap();
        call.set(0, device.buffer_view(&[4], &[5f32; 4]).unwrap()).unwrap();
        call.invoke(&mut session).unwrap();
        assert_eq!(floats(&call.output_view(0).unwrap()), [10.; 4]);
        let first = pollster::block_on(first).unwrap();
        assert_eq!(floats(&first.buffer_view(0).unwrap()), [2.; 4]);
    }
}

#[test]
fn asking_for_what_cannot_be_is_an_error() {
    let device = device("local-task");
    let mut session = session_on(&device);
    let double = session.function("later.double").unwrap();
    let (_signal, elsewhere) = Fence::new(&support::device("local-task")).unwrap();
    let error = session.call_async(&double, [ones(&device)], Some(&elsewhere)).unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument, "{error}");
    let error = Fence::join(&device, [&elsewhere]).unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument, "{error}");
    let error = session.call_async(&double, [], None).unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument, "{error}");

    let mut plain = support::session("local-task");
    let add = plain.function("kinds.add").unwrap();
    assert!(!add.coarse_fences());
    let (a, b) = (ones(plain.device()), ones(plain.device()));
    let error = plain.call_async(&add, [a, b], None).unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition);
    assert!(error.message().contains("--iree-execution-model=async-external"), "{error}");

    let sync = support::device("local-sync");
    let mut session = session_on(&sync);
    let double = session.function("later.double").unwrap();
    let (go, ready) = Fence::new(&sync).unwrap();
    let error = session.call_async(&double, [ones(&sync)], Some(&ready)).unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
    go.signal().unwrap();
    let pending = session.call_async(&double, [ones(&sync)], Some(&ready)).unwrap();
    assert!(pollster::block_on(pending).is_ok());
}

#[test]
fn a_failure_reaches_all_that_waits_and_nothing_else() {
    let device = device("local-task");
    let mut session = session_on(&device);
    let double = session.function("later.double").unwrap();
    let (lost, ready) = Fence::new(&device).unwrap();
    let first = session.call_async(&double, [ones(&device)], Some(&ready)).unwrap();
    let argument = first.early(0).unwrap();
    let second = session.call_async(&double, [argument], Some(first.fence())).unwrap();
    let mut third = session.call_async(&double, [ones(&device)], None).unwrap();
    lost.fail(&Error::new(Code::DataLoss, "the device is lost"));
    for pending in [first, second] {
        let error = pollster::block_on(pending).unwrap_err();
        assert_eq!(error.code(), Code::DataLoss, "{error}");
        assert!(error.message().contains("the device is lost"), "{error}");
        assert!(error.message().contains("calling `later.double`"), "{error}");
    }
    assert!(third.wait(Some(LONG)).is_ok());
    // Calls that begin later fail with the same words, and others go on.
    for _ in 0..2 {
        let error = session.call_async(&double, [ones(&device)], Some(&ready)).unwrap_err();
        assert_eq!(error.code(), Code::DataLoss, "{error}");
        assert!(error.message().contains("the device is lost"), "{error}");
    }
    let out = session.call(&double, [ones(&device)]).unwrap();
    assert_eq!(floats(&out.buffer_view(0).unwrap()), [2.; 4]);
}

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

/// `@step` adds to a tensor that the module keeps.
fn stateful(device: &Device) -> Session {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    let bytes = BYTES.get_or_init(|| {
        let source = "
module @state {
  util.global private mutable @count = dense<0> : tensor<4xi32>
  func.func @step(%by: tensor<4xi32>) -> tensor<4xi32> {
    %old = util.global.load @count : tensor<4xi32>
    %new = stablehlo.add %old, %by : tensor<4xi32>
    util.global.store %new, @count : tensor<4xi32>
    return %new : tensor<4xi32>
  }
}";
        compile(source, &options())
    });
    Session::builder(device).module(module(bytes)).build().unwrap()
}

#[test]
fn calls_that_share_state_are_in_order_without_fences() {
    let device = device("local-task");
    let mut session = stateful(&device);
    let step = session.function("state.step").unwrap();
    let by = |n: i32| Value::from(device.buffer_view(&[4], &[n; 4]).unwrap());
    let (go, ready) = Fence::new(&device).unwrap();
    let mut pending = vec![session.call_async(&step, [by(1)], Some(&ready)).unwrap()];
    pending.extend((2..10).map(|n| session.call_async(&step, [by(n)], None).unwrap()));
    assert!(!pending[8].fence().is_reached().unwrap());
    go.signal().unwrap();
    let mut sum = 0;
    for (n, pending) in (1..).zip(pending) {
        sum += n;
        let out = pollster::block_on(pending).unwrap();
        assert_eq!(out.buffer_view(0).unwrap().read::<i32>().unwrap(), [sum; 4]);
    }
    let out = session.call(&step, [by(5)]).unwrap();
    assert_eq!(out.buffer_view(0).unwrap().read::<i32>().unwrap(), [50; 4]);
}

#[test]
fn a_failed_call_poisons_the_state_that_it_was_to_change() {
    ends(|| {
        let device = device("local-task");
        let mut session = stateful(&device);
        let step = session.function("state.step").unwrap();
        let by = || Value::from(device.buffer_view(&[4], &[1i32; 4]).unwrap());
        session.call(&step, [by()]).unwrap();
        let (lost, ready) = Fence::new(&device).unwrap();
        let first = session.call_async(&step, [by()], Some(&ready)).unwrap();
        let second = session.call_async(&step, [by()], None).unwrap();
        lost.fail(&Error::new(Code::DataLoss, "the device is lost"));
        for pending in [first, second] {
            let error = pollster::block_on(pending).unwrap_err();
            assert!(error.message().contains("the device is lost"), "{error}");
        }
        for _ in 0..3 {
            let error = session.call(&step, [by()]).unwrap_err();
            assert_eq!(error.code(), Code::DataLoss, "{error}");
            assert!(error.message().contains("the device is lost"), "{error}");
            assert!(session.call_async(&step, [by()], None).is_err());
        }
        // The device is fine; a new session has new state.
        drop(session);
        let mut session = stateful(&device);
        let step = session.function("state.step").unwrap();
        let out = session.call(&step, [by()]).unwrap();
        assert_eq!(out.buffer_view(0).unwrap().read::<i32>().unwrap(), [1; 4]);
    });
}

/// A future of `double` waiting for a fence, with its session gone.
fn orphan() -> (iree_rt::Signal, iree_rt::Pending) {
    let device = device("local-task");
    let mut session = session_on(&device);
    let double = session.function("later.double").unwrap();
    let (go, ready) = Fence::new(&device).unwrap();
    let pending = session.call_async(&double, [ones(&device)], Some(&ready)).unwrap();
    (go, pending)
}

#[test]
fn a_call_outlives_its_session_and_module() {
    let (go, pending) = orphan();
    go.signal().unwrap();
    let out = pollster::block_on(pending).unwrap();
    assert_eq!(floats(&out.buffer_view(0).unwrap()), [2.; 4]);
}

/// Runs something once when it is woken, on the thread that wakes.
struct OnWake<F>(Mutex<Option<F>>);

impl<F: FnOnce() + Send + 'static> OnWake<F> {
    fn waker(run: F) -> Waker {
        Arc::new(Self(Mutex::new(Some(run)))).into()
    }
}

impl<F: FnOnce() + Send + 'static> Wake for OnWake<F> {
    fn wake(self: Arc<Self>) {
        let run = self.0.lock().unwrap().take();
        run.unwrap()();
    }
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

struct Counting(AtomicUsize);

impl Wake for Counting {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn the_latest_waker_is_woken_and_dropped_futures_are_not() {
    let device = device("local-task");
    let (go, fence) = Fence::new(&device).unwrap();
    let counts: Vec<_> = (0..3).map(|_| Arc::new(Counting(AtomicUsize::new(0)))).collect();
    let count = |i: usize| counts[i].0.load(Ordering::SeqCst);
    let waker = |i: usize| Waker::from(counts[i].clone());
    let mut kept = Box::pin(fence.reached());
    let mut dropped = Box::pin(fence.reached());
    assert!(kept.as_mut().poll(&mut Context::from_waker(&waker(0))).is_pending());
    assert!(kept.as_mut().poll(&mut Context::from_waker(&waker(1))).is_pending());
    assert!(dropped.as_mut().poll(&mut Context::from_waker(&waker(2))).is_pending());
    drop(dropped);
    assert_eq!(Arc::strong_count(&counts[0]), 1);
    assert_eq!(Arc::strong_count(&counts[2]), 1);
    go.signal().unwrap();
    assert_eq!((count(0), count(1), count(2)), (0, 1, 0));
    let ready = kept.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(ready, Poll::Ready(Ok(()))));
    // A fence that is reached is ready at once.
    let mut again = pin!(fence.reached());
    assert!(again.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
}

#[test]
fn futures_are_dropped_while_their_fence_is_signalled() {
    let device = device("local-task");
    for round in 0..500 {
        let (go, fence) = Fence::new(&device).unwrap();
        let counting = Arc::new(Counting(AtomicUsize::new(0)));
        let waker = Waker::from(counting.clone());
        let futures: Vec<_> = (0..20)
            .map(|_| {
                let mut future = Box::pin(fence.reached());
                let _ = future.as_mut().poll(&mut Context::from_waker(&waker));
                future
            })
            .collect();
        drop(waker);
        let start = std::sync::Barrier::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                start.wait();
                if round % 2 == 0 { go.signal().unwrap() } else { drop(go) }
            });
            start.wait();
            drop(futures);
        });
        // Each waker was woken or dropped, whichever came first.
        assert!(counting.0.load(Ordering::SeqCst) <= 20);
        assert_eq!(Arc::strong_count(&counting), 1);
    }
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

#[test]
fn a_call_is_started_in_its_own_session_only() {
    let device = device("local-task");
    let (mut one, mut other) = (session_on(&device), session_on(&device));
    let double = one.function("later.double").unwrap();
    let error = other.call_async(&double, [ones(&device)], None).unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument, "{error}");
    let mut call = one.prepare(&double).unwrap();
    call.set(0, ones(&device)).unwrap();
    let error = call.invoke_async(&mut other, None).unwrap_err();
    assert!(error.message().contains("another session"), "{error}");
    // A fence of one session's call is as good as any in the other.
    let pending = call.invoke_async(&mut one, None).unwrap();
    let mine = other.function("later.double").unwrap();
    let next = other.call_async(&mine, [pending.early(0).unwrap()], Some(pending.fence()));
    let out = pollster::block_on(next.unwrap()).unwrap();
    assert_eq!(floats(&out.buffer_view(0).unwrap()), [4.; 4]);
}

#[test]
fn semaphores_only_grow() {
    for uri in ["local-task", "local-sync"] {
        let device = device(uri);
        let semaphore = Semaphore::new(&device, 5).unwrap();
        assert_eq!(semaphore.value().unwrap(), 5);
        semaphore.signal(7).unwrap();
        semaphore.wait(6, None).unwrap();
        for back in [0, 6, 7] {
            assert_eq!(semaphore.signal(back).unwrap_err().code(), Code::InvalidArgument);
        }
        // Read as a failure, or as the address of one, by IREE.
        for beyond in [u64::from(i32::MAX as u32), 1 << 63, u64::MAX] {
            assert_eq!(semaphore.signal(beyond).unwrap_err().code(), Code::OutOfRange);
            assert_eq!(semaphore.fence(beyond).unwrap_err().code(), Code::OutOfRange);
            assert_eq!(semaphore.wait(beyond, None).unwrap_err().code(), Code::OutOfRange);
            assert_eq!(Semaphore::new(&device, beyond).unwrap_err().code(), Code::OutOfRange);
        }
        assert_eq!(semaphore.value().unwrap(), 7);
        let started = Instant::now();
        let late = semaphore.wait(8, Some(SHORT)).unwrap_err();
        assert_eq!(late.code(), Code::DeadlineExceeded, "{late}");
        assert!(started.elapsed() >= SHORT && started.elapsed() < LONG);
        let late = semaphore.wait(8, Some(Duration::ZERO)).unwrap_err();
        assert_eq!(late.code(), Code::DeadlineExceeded, "{late}");

        semaphore.fail(&Error::new(Code::Unavailable, "unplugged"));
        semaphore.fail(&Error::new(Code::Internal, "too late to count"));
        let failures = [
            semaphore.value().map(drop),
            semaphore.signal(9),
            semaphore.wait(7, None),
            semaphore.fence(7).unwrap().wait(Some(SHORT)),
            pollster::block_on(semaphore.fence(9).unwrap().reached()),
        ];
        for failure in failures {
            let error = failure.unwrap_err();
            assert_eq!(error.code(), Code::Unavailable, "{error}");
            assert!(error.message().contains("unplugged"), "{error}");
        }
    }
}

#[test]
fn a_failure_is_a_failure_whatever_its_code() {
    let device = device("local-task");
    // To IREE, "deferred" is not a failure but a fence that is not reached yet.
    for code in [Code::Deferred, Code::Unknown, Code::DeadlineExceeded] {
        let (signal, fence) = Fence::new(&device).unwrap();
        signal.fail(&Error::new(code, "with a code of its own"));
        for error in [fence.is_reached().unwrap_err(), fence.wait(Some(SHORT)).unwrap_err()] {
            assert!(error.message().contains("with a code of its own"), "{error}");
        }
    }
}

#[test]
fn dropped_semaphores_fail_what_waits_for_them() {
    let device = device("local-task");
    let semaphore = Semaphore::new(&device, 0).unwrap();
    let fence = semaphore.fence(2).unwrap();
    let other = semaphore.clone();
    semaphore.signal(1).unwrap();
    drop(semaphore);
    assert!(!fence.is_reached().unwrap());
    drop(other);
    assert_eq!(fence.is_reached().unwrap_err().code(), Code::Cancelled);

    let semaphore = Semaphore::new(&device, 0).unwrap();
    let fence = semaphore.fence(2).unwrap();
    semaphore.signal(3).unwrap();
    drop(semaphore);
    assert!(fence.is_reached().unwrap());
}

#[test]
fn joined_fences_wait_for_all_and_fail_with_one() {
    let device = device("local-task");
    let empty = Fence::join(&device, []).unwrap();
    assert!(empty.is_reached().unwrap());
    assert!(pollster::block_on(empty.into_future()).is_ok());

    let (first, a) = Fence::new(&device).unwrap();
    let (second, b) = Fence::new(&device).unwrap();
    let both = Fence::join(&device, [&a, &b, &a]).unwrap();
    first.signal().unwrap();
    assert!(a.is_reached().unwrap() && !both.is_reached().unwrap());
    thread::scope(|scope| {
        let waiting = scope.spawn(|| pollster::block_on(both.reached()));
        second.signal().unwrap();
        waiting.join().unwrap().unwrap();
    });

    let (_never, a) = Fence::new(&device).unwrap();
    let (failing, b) = Fence::new(&device).unwrap();
    let both = Fence::join(&device, [&a, &b]).unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| both.wait(Some(LONG)));
        let awaiting = scope.spawn(|| pollster::block_on(both.reached()));
        failing.fail(&Error::new(Code::Aborted, "no more"));
        for error in [waiting.join().unwrap(), awaiting.join().unwrap()].map(Result::unwrap_err) {
            assert_eq!(error.code(), Code::Aborted, "{error}");
            assert!(error.message().contains("no more"), "{error}");
        }
    });
}

/// The graph of the example with fences, on a device whose kernel `scale` is `kernel`.
fn with_kernel(kernel: Kernel) -> (Device, Session) {
    let source = include_str!("../examples/kernel.mlir")
        .replace(
            "(%x_view: !hal.buffer_view)",
            "(%x_view: !hal.buffer_view, %w: !hal.fence, %s: !hal.fence)",
        )
        .replace(
            "{iree.abi.stub}",
            "{iree.abi.stub, iree.reflection = {iree.abi.model = \"coarse-fences\"}}",
        )
        .replace("hal.tensor.import %x_view", "hal.tensor.import wait(%w) => %x_view")
        .replace(
            "%y_view = hal.tensor.export %y ",
            "%ready = hal.tensor.barrier join(%y : tensor<8xf32>) => %s : !hal.fence
             %y_view = hal.tensor.export %ready ",
        );
    let kernels = Kernels::new().with("scale", kernel);
    let options = DeviceOptions { kernels, ..DeviceOptions::default() };
    let device = Instance::get().unwrap().device_with("local-task", &options).unwrap();
    let bytes = compile(&source, &CompileOptions::default());
    let session = Session::builder(&device).module(module(&bytes)).build().unwrap();
    (device, session)
}

/// Programs from PyTorch have both forms of every function.
#[test]
fn programs_of_torch_have_an_asynchronous_form() {
    let source = "
module @torch_program {
  func.func @main(%a: !torch.vtensor<[4],f32>, %b: !torch.vtensor<[4],f32>)
      -> !torch.vtensor<[4],f32> attributes {torch.assume_strict_symbolic_shapes} {
    %one = torch.constant.int 1
    %sum = torch.aten.add.Tensor %a, %b, %one
        : !torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>, !torch.int -> !torch.vtensor<[4],f32>
    return %sum : !torch.vtensor<[4],f32>
  }
}";
    let bytes = compile(source, &CompileOptions::default().flag("--iree-input-type=torch"));
    let device = device("local-task");
    let mut session = Session::builder(&device).module(module(&bytes)).build().unwrap();
    let functions = ["main", "main$async"]
        .map(|name| session.function(&format!("torch_program.{name}")).unwrap());
    assert_eq!(functions.each_ref().map(|f| f.coarse_fences()), [false, true]);
    for function in &functions {
        assert_eq!(function.arguments().len(), 2);
        let out = session.call(function, [ones(&device), ones(&device)]).unwrap();
        assert_eq!(floats(&out.buffer_view(0).unwrap()), [2.; 4]);
    }
    let (go, ready) = Fence::new(&device).unwrap();
    let arguments = [ones(&device), ones(&device)];
    let pending = session.call_async(&functions[1], arguments, Some(&ready)).unwrap();
    go.signal().unwrap();
    let out = pollster::block_on(pending).unwrap();
    assert_eq!(floats(&out.buffer_view(0).unwrap()), [2.; 4]);
}

#[test]
fn typed_calls_are_typed_when_they_are_awaited() {
    let device = device("local-task");
    let mut session = session_on(&device);
    let double = session.typed::<(Tensor<f32>,), Tensor<f32>>("later.double").unwrap();
    let tensor = || Tensor::<f32>::try_from(device.buffer_view(&[4], &[3f32; 4]).unwrap());
    let (go, ready) = Fence::new(&device).unwrap();
    let mut first = double.call_async(&mut session, (tensor().unwrap(),), Some(&ready)).unwrap();
    assert_eq!(first.wait(Some(SHORT)).unwrap_err().code(), Code::DeadlineExceeded);
    let second = double.call_async(&mut session, (tensor().unwrap(),), Some(first.fence()));
    go.signal().unwrap();
    assert_eq!(pollster::block_on(second.unwrap()).unwrap().read().unwrap(), [6.; 4]);
    assert_eq!(first.wait(None).unwrap().read().unwrap(), [6.; 4]);
    let wrong = device.buffer_view(&[3], &[1f32; 3]).unwrap().try_into().unwrap();
    let error = double.call_async(&mut session, (wrong,), None).unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument, "{error}");
}

#[test]
fn a_kernel_fails_its_call_and_those_in_line() {
    let failing = Kernel::new(2, 2, |_| Err(Error::new(Code::Unavailable, "not today")));
    let (device, mut session) = with_kernel(failing);
    let scale = session.function("gate.scale").unwrap();
    let x = device.buffer_view(&[8], &[0f32; 8]).unwrap();
    let (go, ready) = Fence::new(&device).unwrap();
    let first = session.call_async(&scale, [(&x).into()], Some(&ready)).unwrap();
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
    let error = session.call(&scale, [x.into()]).unwrap_err();
    assert!(error.message().contains("not today"), "{error}");
}

#[test]
fn everything_may_be_dropped_while_a_kernel_runs() {
    ends(|| {
        let ended = Arc::new(AtomicUsize::new(0));
        let count = ended.clone();
        let (starting, started) = mpsc::channel();
        let starting = Mutex::new(starting);
        let slow = Kernel::new(2, 2, move |_| {
            let _ = starting.lock().unwrap().send(());
            thread::sleep(SHORT);
            count.fetch_add(1, Ordering::SeqCst);
            Ok(())
        });
        let (device, mut session) = with_kernel(slow);
        let scale = session.function("gate.scale").unwrap();
        let x = device.buffer_view(&[8], &[0f32; 8]).unwrap();
        let pending = session.call_async(&scale, [x.into()], None).unwrap();
        started.recv().unwrap();
        // The call came back while the device works.
        assert!(!pending.fence().is_reached().unwrap());
        drop((pending, session, scale));
        // The last handle of a device waits for its work.
        drop(device);
        assert_eq!(ended.load(Ordering::SeqCst), 4);
    });
}

#[test]
fn a_waker_may_drop_the_last_handle_of_the_device() {
    ends(|| {
        let slow = Kernel::new(2, 2, |_| {
            thread::sleep(SHORT);
            Ok(())
        });
        let (device, mut session) = with_kernel(slow);
        let scale = session.function("gate.scale").unwrap();
        let x = device.buffer_view(&[8], &[0f32; 8]).unwrap();
        let mut pending = Box::pin(session.call_async(&scale, [x.into()], None).unwrap());
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
        drop((device, session, scale, waker));
        *slot = Some(pending);
        drop(slot);
        assert_ne!(woken.recv().unwrap(), thread::current().id());
    });
}

#[test]
fn cancelled_sessions_begin_no_calls() {
    let device = device("local-task");
    let mut session = session_on(&device);
    let double = session.function("later.double").unwrap();
    let canceller = session.canceller();
    let running = session.call_async(&double, [ones(&device)], None).unwrap();
    thread::scope(|scope| drop(scope.spawn(|| canceller.cancel())));
    for _ in 0..2 {
        let error = session.call(&double, [ones(&device)]).unwrap_err();
        assert_eq!(error.code(), Code::Cancelled, "{error}");
        let error = session.call_async(&double, [ones(&device)], None).unwrap_err();
        assert_eq!(error.code(), Code::Cancelled, "{error}");
    }
    assert!(pollster::block_on(running).is_ok());
    assert!(session.canceller().is_cancelled());
    canceller.reset();
    assert!(session.call(&double, [ones(&device)]).is_ok());
}

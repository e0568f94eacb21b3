//! Calls in flight: when they begin and end, on any executor, and what they fail with.

use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use crate::support::in_flight::{LONG, SHORT, ends, floats, ones, options, session_on};
use crate::support::{compile, device, module};
use iree_rt::{Code, CompileOptions, Device, Error, Fence, Session, Tensor, Value};

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
        assert_eq!(floats(&out.unwrap().view(0).unwrap()), [2.; 4]);
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
                    let pending = session.lock().await.call_async(&double, [a], None);
                    floats(&pending.unwrap().await.unwrap().view(0).unwrap())
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
    assert_eq!(floats(&out.view(0).unwrap()), [1024.; 4]);
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
        let out = session.call(&scaled, (&a, Value::I32(4))).unwrap();
        assert_eq!(floats(&out.view(0).unwrap()), [-1., 2.]);
        assert_eq!(out.view(1).unwrap().read::<i32>().unwrap(), [8]);
        type Both = (Tensor<f32>, Tensor<i32>);
        let typed = session.typed::<(Tensor<f32>, i32), Both>("later.scaled").unwrap();
        let (negated, eight) = typed.call(&mut session, (a.try_into().unwrap(), 4)).unwrap();
        assert_eq!((negated.read().unwrap(), eight.read().unwrap()), (vec![-1., 2.], vec![8]));
        let nothing = session.function("later.nothing").unwrap();
        assert!(session.call(&nothing, ()).unwrap().is_empty());
        assert!(pollster::block_on(session.call_async(&nothing, (), None).unwrap()).is_ok());
        let until = session.function("later.until").unwrap();
        let five = device.buffer_view(&[], &[5i32]).unwrap();
        let pending = session.call_async(&until, (ones(&device), five), None).unwrap();
        let out = pollster::block_on(pending).unwrap();
        assert_eq!(floats(&out.view(0).unwrap()), [32.; 4]);
        let mut call = session.prepare(&session.function("later.double").unwrap()).unwrap();
        let missing = call.invoke_async(&mut session, None).unwrap_err();
        assert_eq!(missing.code(), Code::FailedPrecondition);
        call.set(0, ones(&device)).unwrap();
        let first = call.invoke_async(&mut session, None).unwrap();
        call.set(0, device.buffer_view(&[4], &[5f32; 4]).unwrap()).unwrap();
        call.invoke(&mut session).unwrap();
        assert_eq!(floats(&call.outputs().view(0).unwrap()), [10.; 4]);
        let first = pollster::block_on(first).unwrap();
        assert_eq!(floats(&first.view(0).unwrap()), [2.; 4]);
    }
}

#[test]
fn asking_for_what_cannot_be_is_an_error() {
    let device = device("local-task");
    let mut session = session_on(&device);
    let double = session.function("later.double").unwrap();
    let (_signal, elsewhere) = Fence::new(&crate::support::device("local-task")).unwrap();
    let error = session.call_async(&double, [ones(&device)], Some(&elsewhere)).unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument, "{error}");
    let error = Fence::join(&device, [&elsewhere]).unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument, "{error}");
    let error = session.call_async(&double, (), None).unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument, "{error}");

    let mut plain = crate::support::session("local-task");
    let add = plain.function("kinds.add").unwrap();
    assert!(!add.coarse_fences());
    let (a, b) = (ones(plain.device()), ones(plain.device()));
    let error = plain.call_async(&add, [a, b], None).unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition);
    assert!(error.message().contains("--iree-execution-model=async-external"), "{error}");

    let sync = crate::support::device("local-sync");
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
    assert_eq!(floats(&out.view(0).unwrap()), [2.; 4]);
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
        assert_eq!(out.view(0).unwrap().read::<i32>().unwrap(), [sum; 4]);
    }
    let out = session.call(&step, [by(5)]).unwrap();
    assert_eq!(out.view(0).unwrap().read::<i32>().unwrap(), [50; 4]);
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
        assert_eq!(out.view(0).unwrap().read::<i32>().unwrap(), [1; 4]);
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
    assert_eq!(floats(&out.view(0).unwrap()), [4.; 4]);
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
    // One function, which may be called either way.
    assert!(functions.iter().all(|function| function.coarse_fences()));
    for function in &functions {
        assert_eq!(function.arguments().len(), 2);
        let out = session.call(function, [ones(&device), ones(&device)]).unwrap();
        assert_eq!(floats(&out.view(0).unwrap()), [2.; 4]);
    }
    for function in &functions {
        let (go, ready) = Fence::new(&device).unwrap();
        let arguments = [ones(&device), ones(&device)];
        let pending = session.call_async(function, arguments, Some(&ready)).unwrap();
        go.signal().unwrap();
        let out = pollster::block_on(pending).unwrap();
        assert_eq!(floats(&out.view(0).unwrap()), [2.; 4]);
    }
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

//! What programs ask for (parameters, native functions, traces) and are passed (lists), when they
//! were compiled for asynchronous calls.

mod support;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use iree_rt::{
    Code, CompileOptions, Device, Error, Fence, Module, NativeModule, ParameterIndex, Result,
    Session, SessionBuilder, Tensor, Value,
};
use support::{compile, device, module};

type F32 = Tensor<f32>;

const LONG: Option<Duration> = Some(Duration::from_secs(30));

const PROGRAM: &str = r#"
module @program {
  util.global private @weights = #flow.parameter.named<"model"::"weights"> : tensor<4xf32>
  func.func private @host.next(i32) -> i32
  func.func private @host.offset(tensor<4xf32>) -> tensor<4xf32>
  func.func @weigh(%a: tensor<4xf32>) -> tensor<4xf32> {
    %w = util.global.load @weights : tensor<4xf32>
    %0 = stablehlo.multiply %a, %w : tensor<4xf32>
    flow.tensor.trace "weighed" = [%0 : tensor<4xf32>]
    return %0 : tensor<4xf32>
  }
  func.func @count(%a: tensor<4xf32>, %n: i32) -> tensor<4xf32> {
    %0 = call @host.next(%n) : (i32) -> i32
    %1 = arith.sitofp %0 : i32 to f32
    %2 = tensor.from_elements %1 : tensor<f32>
    %3 = stablehlo.broadcast_in_dim %2, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %4 = stablehlo.add %a, %3 : tensor<4xf32>
    return %4 : tensor<4xf32>
  }
  func.func @offset(%a: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.add %a, %a : tensor<4xf32>
    %1 = call @host.offset(%0) : (tensor<4xf32>) -> tensor<4xf32>
    %2 = stablehlo.add %a, %1 : tensor<4xf32>
    return %2 : tensor<4xf32>
  }
  func.func @first(%a: tensor<4xf32>, %l: !util.list<?>) -> tensor<4xf32> {
    %at = arith.constant 0 : index
    %0 = util.list.get %l[%at] : !util.list<?> -> i32
    %1 = arith.addi %0, %0 : i32
    util.list.set %l[%at], %1 : i32 -> !util.list<?>
    %2 = arith.sitofp %0 : i32 to f32
    %3 = tensor.from_elements %2 : tensor<f32>
    %4 = stablehlo.broadcast_in_dim %3, dims = [] : (tensor<f32>) -> tensor<4xf32>
    %5 = stablehlo.add %a, %4 : tensor<4xf32>
    return %5 : tensor<4xf32>
  }
  func.func @same(%l: !util.list<?>) -> !util.list<?> {
    return %l : !util.list<?>
  }
}
"#;

fn program() -> Module {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    let options = CompileOptions::default().flag("--iree-execution-model=async-external");
    module(BYTES.get_or_init(|| compile(PROGRAM, &options)))
}

/// Counts what is added up, and adds 0.5 to tensors.
fn host() -> NativeModule<i32> {
    NativeModule::with_state("host", 0)
        .method("next", |count, (by,): (i32,)| {
            *count += by;
            Ok(*count)
        })
        .function("offset", |(x,): (F32,)| {
            let sum: Vec<f32> = x.read()?.iter().map(|x| x + 0.5).collect();
            x.view().device().buffer_view(&[4], &sum)
        })
}

fn weights() -> ParameterIndex {
    let index = ParameterIndex::new().unwrap();
    index.add("weights", &[1f32, 2., 3., 4.], b"").unwrap();
    index
}

fn builder(device: &Device, host: NativeModule<i32>) -> SessionBuilder {
    Session::builder(device).native(host).parameters("model", &weights()).module(program())
}

fn session(device: &Device) -> Session {
    builder(device, host()).build().unwrap()
}

fn tensor(device: &Device, value: f32) -> Value {
    device.buffer_view(&[4], &[value; 4]).unwrap().into()
}

/// The tensor that a call in flight gives.
fn started(session: &mut Session, name: &str, arguments: Vec<Value>) -> Result<Vec<f32>> {
    let function = session.function(name)?;
    let mut pending = session.call_async(&function, arguments, None)?;
    pending.wait(LONG)?.view(0)?.read()
}

#[test]
fn native_functions_are_called_with_and_without_waiting() {
    let device = device("local-task");
    let mut session = session(&device);
    for uri in ["local-task", "local-sync"] {
        let device = support::device(uri);
        let mut session = self::session(&device);
        let count = session.function("program.count").unwrap();
        let out = session.call(&count, (tensor(&device, 1.), 2));
        // Scalars are passed as they are, 32 bits wide.
        assert_eq!(out.unwrap().view(0).unwrap().read::<f32>().unwrap(), [3.; 4]);
        let arguments = vec![tensor(&device, 1.), 5.into()];
        assert_eq!(started(&mut session, "program.count", arguments).unwrap(), [8.; 4]);
        let arguments = vec![tensor(&device, 1.)];
        assert_eq!(started(&mut session, "program.offset", arguments).unwrap(), [3.5; 4]);
    }
    // A function without tensors is called while the work waits.
    let count = session.function("program.count").unwrap();
    let (go, ready) = Fence::new(&device).unwrap();
    let arguments = [tensor(&device, 0.), 4.into()];
    let mut first = session.call_async(&count, arguments, Some(&ready)).unwrap();
    let mut second =
        session.call_async(&count, (first.early(0).unwrap(), 1), Some(first.fence())).unwrap();
    assert!(!second.fence().is_reached().unwrap());
    go.signal().unwrap();
    assert_eq!(first.wait(LONG).unwrap().view(0).unwrap().read::<f32>().unwrap(), [4.; 4]);
    assert_eq!(second.wait(LONG).unwrap().view(0).unwrap().read::<f32>().unwrap(), [9.; 4]);
}

#[test]
fn tensors_are_there_when_a_native_function_is_called() {
    let device = device("local-task");
    let mut session = session(&device);
    let offset = session.function("program.offset").unwrap();
    let (go, ready) = Fence::new(&device).unwrap();
    let asked = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        go.signal().unwrap();
    });
    // Not before the fence: the call waits for it.
    let mut pending = session.call_async(&offset, [tensor(&device, 2.)], Some(&ready)).unwrap();
    assert!(ready.is_reached().unwrap());
    asked.join().unwrap();
    let out = pending.wait(LONG).unwrap().view(0).unwrap();
    assert_eq!(out.read::<f32>().unwrap(), [6.5; 4]);

    // What the tensors fail with is the call's error, and the function is not called.
    let (signal, never) = Fence::new(&device).unwrap();
    signal.fail(&Error::new(Code::Aborted, "the user changed their mind"));
    let error = session.call_async(&offset, [tensor(&device, 2.)], Some(&never)).unwrap_err();
    assert_eq!(error.code(), Code::Aborted, "{error}");
}

#[test]
fn errors_and_panics_of_native_functions_are_those_of_the_call() {
    let device = device("local-task");
    let host = host()
        .function("next", |(_,): (i32,)| Err::<i32, _>(Error::new(Code::DataLoss, "lost count")))
        .function("offset", |(x,): (F32,)| -> Result<F32> { panic!("{:?}", x.view().shape()) });
    let mut session = builder(&device, host).build().unwrap();
    let arguments = vec![tensor(&device, 1.), 1.into()];
    let error = started(&mut session, "program.count", arguments).unwrap_err();
    assert_eq!(error.code(), Code::DataLoss, "{error}");
    assert!(error.message().contains("native function `host.next`"), "{error}");
    let error = started(&mut session, "program.offset", vec![tensor(&device, 1.)]).unwrap_err();
    assert_eq!(error.code(), Code::Internal, "{error}");
    assert!(error.message().contains("panicked: [4]"), "{error}");
    // The session goes on.
    let sum = started(&mut session, "program.weigh", vec![tensor(&device, 1.)]).unwrap();
    assert_eq!(sum, [1., 2., 3., 4.]);
}

#[test]
fn both_forms_of_a_native_function_can_be_called() {
    let device = device("local-task");
    let mut session = session(&device);
    let next = session.function("host.next").unwrap();
    assert!(matches!(session.call(&next, [3]).unwrap().get(0).unwrap(), Value::I32(3)));
    for (name, sum) in [("host.next", 7), ("host.next$async", 11)] {
        let next = session.function(name).unwrap();
        assert!(next.coarse_fences());
        let mut pending = session.call_async(&next, [4], None).unwrap();
        let out = pending.wait(LONG).unwrap().get(0).unwrap();
        assert!(matches!(out, Value::I32(out) if out == sum), "{out:?}");
    }
    // A function that is named so is itself.
    let host = host().function("next$async", |(a, b): (i32, i32)| Ok(a * b));
    let session = Session::builder(&device).native(host).build().unwrap();
    assert_eq!(session.function("host.next$async").unwrap().arguments().len(), 2);
}

#[test]
fn other_types_than_are_imported_are_refused() {
    let device = device("local-task");
    let host = host().function("next", |(a,): (i64,)| Ok(a));
    let error = builder(&device, host).build().unwrap_err();
    assert_eq!(error.code(), Code::Internal, "{error}");
    assert!(error.message().contains("host.next signature mismatch"), "{error}");
}

#[test]
fn everything_may_be_dropped_while_the_work_waits() {
    let device = device("local-task");
    let dropped = Arc::new(AtomicUsize::new(0));
    struct Counted(Arc<AtomicUsize>);
    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let counted = Counted(dropped.clone());
    let host = host().function("next", move |(by,): (i32,)| {
        let _ = &counted;
        Ok(by)
    });
    let mut session = builder(&device, host).build().unwrap();
    let (go, ready) = Fence::new(&device).unwrap();
    let count = session.function("program.count").unwrap();
    let arguments = [tensor(&device, 1.), 2.into()];
    let mut pending = session.call_async(&count, arguments, Some(&ready)).unwrap();
    drop((session, count, device));
    assert_eq!(dropped.load(Ordering::SeqCst), 1, "natives end with their session");
    go.signal().unwrap();
    let out = pending.wait(LONG).unwrap().view(0).unwrap();
    assert_eq!(out.read::<f32>().unwrap(), [3.; 4]);
}

const WEIGHED: &str = r#"
module @plain {
  util.global private @weights = #flow.parameter.named<"model"::"weights"> : tensor<4xf32>
  func.func @weigh(%a: tensor<4xf32>) -> tensor<4xf32> {
    %w = util.global.load @weights : tensor<4xf32>
    %0 = stablehlo.multiply %a, %w : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
"#;

#[test]
fn parameters_outlive_their_session_in_the_work_that_uses_them() {
    let options = CompileOptions::default().flag("--iree-execution-model=async-external");
    let bytes = compile(WEIGHED, &options);
    let device = device("local-task");
    let index = weights();
    let mut session = Session::builder(&device)
        .parameters("model", &index)
        .module(module(&bytes))
        .build()
        .unwrap();
    let weigh = session.function("plain.weigh").unwrap();
    let (go, ready) = Fence::new(&device).unwrap();
    let mut pending = session.call_async(&weigh, [tensor(&device, 2.)], Some(&ready)).unwrap();
    drop((session, index, weigh, device));
    go.signal().unwrap();
    let out = pending.wait(LONG).unwrap().view(0).unwrap();
    assert_eq!(out.read::<f32>().unwrap(), [2., 4., 6., 8.]);
}

#[test]
fn traced_tensors_are_there() {
    let device = device("local-task");
    let traced = Arc::new(Mutex::new(Vec::new()));
    let sink = traced.clone();
    let mut session = builder(&device, host())
        .on_trace(move |key, tensors| {
            sink.lock().unwrap().push((key.to_owned(), tensors[0].read::<f32>()?));
            Ok(())
        })
        .build()
        .unwrap();
    let sum = started(&mut session, "program.weigh", vec![tensor(&device, 1.)]).unwrap();
    assert_eq!(sum, [1., 2., 3., 4.]);
    assert_eq!(*traced.lock().unwrap(), [("weighed".to_owned(), vec![1., 2., 3., 4.])]);
}

#[test]
fn lists_are_passed_by_value_to_every_call() {
    let device = device("local-task");
    let mut session = session(&device);
    let first = session.function("program.first").unwrap();
    let mut call = session.prepare(&first).unwrap();
    call.set(0, tensor(&device, 0.)).unwrap();
    call.set(1, vec![Value::from(7)]).unwrap();
    // The program doubles the entry of its list each time.
    for _ in 0..3 {
        let mut pending = call.invoke_async(&mut session, None).unwrap();
        let out = pending.wait(LONG).unwrap().view(0).unwrap();
        assert_eq!(out.read::<f32>().unwrap(), [7.; 4]);
        call.invoke(&mut session).unwrap();
        assert_eq!(call.outputs().view(0).unwrap().read::<f32>().unwrap(), [7.; 4]);
    }
    // And what comes back is a copy.
    let same = session.function("program.same").unwrap();
    let list = vec![Value::from(1), Value::from("text")];
    let mut pending = session.call_async(&same, [list], None).unwrap();
    let Value::List(values) = pending.wait(LONG).unwrap().get(0).unwrap() else {
        panic!("no list")
    };
    assert!(matches!(&values[..], [Value::I32(1), Value::Bytes(text)] if text == b"text"));
}

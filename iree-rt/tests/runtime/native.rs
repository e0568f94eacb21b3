//! Native modules: Rust functions that compiled programs call.

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;

use crate::support::{compile, device, module};
use iree_rt::{
    BufferView, Code, CompileOptions, Error, Module, NativeModule, Reference, Result, ScalarType,
    Session, Tensor, Value, ValueType,
};

type F32 = Tensor<f32>;

const PROGRAM: &str = r#"
module @program {
  func.func private @host.all(i32, i64, f32, f64) -> (f64, i32, i64, f32)
  func.func private @host.odd(i32, tensor<2xf32>, i32, i64, tensor<2xf32>) -> (i32, tensor<2xf32>)
  func.func private @host.flag(i1, i8) -> i16
  func.func private @host.print(!util.buffer)
  func.func private @host.list(!util.list<?>) -> !util.list<?>
  func.func private @host.make(i32) -> !util.object
  func.func private @host.read(!util.object) -> i32
  func.func private @host.next() -> i32
  func.func @all(%a: i32, %b: i64, %c: f32, %d: f64) -> (f64, i32, i64, f32) {
    %0:4 = call @host.all(%a, %b, %c, %d) : (i32, i64, f32, f64) -> (f64, i32, i64, f32)
    return %0#0, %0#1, %0#2, %0#3 : f64, i32, i64, f32
  }
  func.func @odd(%a: i32, %x: tensor<2xf32>) -> (i32, tensor<2xf32>) {
    %y = stablehlo.add %x, %x : tensor<2xf32>
    %big = arith.constant 4294967296 : i64
    %0:2 = call @host.odd(%a, %x, %a, %big, %y)
        : (i32, tensor<2xf32>, i32, i64, tensor<2xf32>) -> (i32, tensor<2xf32>)
    %z = stablehlo.add %0#1, %x : tensor<2xf32>
    return %0#0, %z : i32, tensor<2xf32>
  }
  func.func @flag(%a: i1, %b: i8) -> i16 {
    %0 = call @host.flag(%a, %b) : (i1, i8) -> i16
    return %0 : i16
  }
  func.func @print() {
    %0 = util.buffer.constant : !util.buffer = "gr\C3\BC\C3\9Fe"
    call @host.print(%0) : (!util.buffer) -> ()
    return
  }
  func.func @list(%a: !util.list<?>) -> !util.list<?> {
    %0 = call @host.list(%a) : (!util.list<?>) -> !util.list<?>
    return %0 : !util.list<?>
  }
  func.func @object(%a: i32) -> (!util.object, i32) {
    %0 = call @host.make(%a) : (i32) -> !util.object
    %1 = call @host.read(%0) : (!util.object) -> i32
    return %0, %1 : !util.object, i32
  }
  func.func @read(%a: !util.object) -> i32 {
    %0 = call @host.read(%a) : (!util.object) -> i32
    return %0 : i32
  }
  func.func @next() -> i32 {
    %0 = call @host.next() : () -> i32
    return %0 : i32
  }
}
"#;

fn program() -> Module {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    let options = CompileOptions::default().flag("--iree-input-demote-f64-to-f32=false");
    module(BYTES.get_or_init(|| compile(PROGRAM, &options)))
}

/// Everything that [`PROGRAM`] imports.
fn host() -> NativeModule<i32> {
    NativeModule::with_state("host", 0)
        .function("all", |(a, b, c, d): (i32, i64, f32, f64)| Ok((d, a, b, c)))
        .function("odd", |(a, x, b, big, y): (i32, F32, i32, i64, F32)| {
            assert_eq!((big, y.view().shape()), (1 << 32, &[2][..]));
            let sum: Vec<f32> = x.read()?.iter().zip(y.read()?).map(|(x, y)| x + y).collect();
            Ok((a * 10 + b, x.view().device().buffer_view(&[2], &sum)?))
        })
        .function("flag", |(flag, small): (i32, i32)| Ok(flag * 100 + small))
        .function("print", |(_text,): (String,)| Ok(()))
        .function("list", |(list,): (Vec<Value>,)| Ok(list))
        .function("make", |(number,): (i32,)| Reference::new(Counted(number)))
        .function("read", |(object,): (Reference,)| {
            let counted = object.downcast_ref::<Counted>();
            counted.map(|counted| counted.0).ok_or_else(|| Error::new(Code::NotFound, "no Counted"))
        })
        .method("next", |count, ()| {
            *count += 1;
            Ok(*count)
        })
}

struct Counted(i32);

fn session_with<S: Send + 'static>(host: NativeModule<S>) -> Result<Session> {
    Session::builder(&device("local-sync")).native(host).module(program()).build()
}

fn session() -> Session {
    session_with(host()).unwrap()
}

/// The error of `program.next` when `host.next` is this.
fn error_of(next: impl FnMut(()) -> Result<i32> + Send + 'static) -> Error {
    let mut session = session_with(host().function("next", next)).unwrap();
    let function = session.function("program.next").unwrap();
    let error = session.call(&function, ()).unwrap_err();
    // The session goes on.
    let print = session.function("program.print").unwrap();
    session.call(&print, ()).unwrap();
    error
}

#[test]
fn scalars_of_every_type_and_several_results() {
    let mut session = session();
    let all = session.typed::<(i32, i64, f32, f64), (f64, i32, i64, f32)>("program.all").unwrap();
    let out = all.call(&mut session, (-7, i64::MIN, 0.5, 1e300)).unwrap();
    assert_eq!(out, (1e300, -7, i64::MIN, 0.5));
    // Narrow integers and truth values are 32 bits wide on the way.
    let flag = session.typed::<(i32, i32), i32>("program.flag").unwrap();
    assert_eq!(flag.call(&mut session, (1, 23)).unwrap(), 123);
    assert_eq!(flag.call(&mut session, (0, -1)).unwrap(), -1);
}

#[test]
fn tensors_among_scalars_on_both_cpu_devices() {
    for uri in ["local-sync", "local-task"] {
        let device = device(uri);
        let mut session =
            Session::builder(&device).native(host()).module(program()).build().unwrap();
        let odd = session.typed::<(i32, F32), (i32, F32)>("program.odd").unwrap();
        for i in 1..20 {
            let x = device.buffer_view(&[2], &[i as f32, -1.]).unwrap();
            let (number, z) = odd.call(&mut session, (i, x.try_into().unwrap())).unwrap();
            assert_eq!(number, i * 11);
            assert_eq!(z.read().unwrap(), [i as f32 * 4., -4.]);
        }
    }
}

#[test]
fn text_reaches_the_function() {
    let said = Arc::new(Mutex::new(Vec::new()));
    let heard = said.clone();
    let print = move |(text,): (String,)| {
        heard.lock().unwrap().push(text);
        Ok(())
    };
    let mut session = session_with(host().function("print", print)).unwrap();
    let function = session.function("program.print").unwrap();
    session.call(&function, ()).unwrap();
    session.call(&function, ()).unwrap();
    assert_eq!(*said.lock().unwrap(), ["grüße", "grüße"]);
}

#[test]
fn lists_go_there_and_back() {
    let mut session = session();
    let list = session.function("program.list").unwrap();
    let x = session.device().buffer_view(&[2], &[1f32, 2.]).unwrap();
    let inner = vec![Value::from(2i64), "text".into(), Value::Null];
    let values = vec![Value::from(1), Value::from(inner), x.into(), 0.5f64.into()];
    let out = session.call(&list, [values]).unwrap().get(0).unwrap();
    let Value::List(out) = out else { panic!("{out:?}") };
    let [Value::I32(1), Value::List(inner), Value::BufferView(view), Value::F64(0.5)] = &out[..]
    else {
        panic!("{out:?}")
    };
    assert_eq!(view.read::<f32>().unwrap(), [1., 2.]);
    let [Value::I64(2), Value::Bytes(text), Value::Null] = &inner[..] else { panic!("{inner:?}") };
    assert_eq!(text, b"text");
}

#[test]
fn rust_values_pass_through_a_program() {
    static ALIVE: AtomicUsize = AtomicUsize::new(0);
    struct Alive(i32);
    impl Drop for Alive {
        fn drop(&mut self) {
            ALIVE.fetch_sub(1, Ordering::SeqCst);
        }
    }
    let host = host()
        .function("make", |(number,): (i32,)| {
            ALIVE.fetch_add(1, Ordering::SeqCst);
            Reference::new(Alive(number))
        })
        .function("read", |(object,): (Reference,)| {
            Ok(object.downcast_ref::<Alive>().map_or(-1, |alive| alive.0))
        });
    let mut session = session_with(host).unwrap();
    let object = session.typed::<(i32,), (Reference, i32)>("program.object").unwrap();
    let (made, read) = object.call(&mut session, (42,)).unwrap();
    assert_eq!((read, ALIVE.load(Ordering::SeqCst)), (42, 1));
    assert_eq!(made.downcast_ref::<Alive>().unwrap().0, 42);
    assert!(made.downcast_ref::<Counted>().is_none());
    assert_eq!(made.type_name(), "util.object");
    let read = session.typed::<(Reference,), i32>("program.read").unwrap();
    assert_eq!(read.call(&mut session, (made.clone(),)).unwrap(), 42);
    // A value of another type is told from the right one.
    let other = Reference::new("other").unwrap();
    assert_eq!(read.call(&mut session, (other,)).unwrap(), -1);
    drop(session);
    assert_eq!(ALIVE.load(Ordering::SeqCst), 1);
    drop(made);
    assert_eq!(ALIVE.load(Ordering::SeqCst), 0);
}

#[test]
fn state_is_the_sessions() {
    let (mut first, mut second) = (session(), session());
    let next = |session: &mut Session| {
        let next = session.typed::<(), i32>("program.next").unwrap();
        next.call(session, ()).unwrap()
    };
    assert_eq!([next(&mut first), next(&mut first), next(&mut first)], [1, 2, 3]);
    assert_eq!(next(&mut second), 1);
    let third = thread::spawn(move || next(&mut first)).join().unwrap();
    assert_eq!(third, 4);
}

#[test]
fn errors_and_panics_are_errors_of_the_call() {
    let error = error_of(|()| Err(Error::new(Code::PermissionDenied, "not on Sundays")));
    assert_eq!(error.code(), Code::PermissionDenied);
    let message = error.message();
    assert!(message.contains("not on Sundays"), "{message}");
    assert!(message.contains("`host.next`") && message.contains("`program.next`"), "{message}");

    let error = error_of(|()| panic!("number {}", 13));
    assert_eq!(error.code(), Code::Internal);
    assert!(error.message().contains("panicked: number 13"), "{error}");

    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("dropped");
        }
    }
    let error = error_of(|()| std::panic::panic_any(Bomb));
    assert!(error.message().contains("something other than text"), "{error}");

    // Codes that mean something to the VM.
    for code in [Code::Deferred, Code::NotFound, Code::Unavailable, Code::ResourceExhausted] {
        let error = error_of(move |()| Err(Error::new(code, "hm")));
        assert!(error.message().contains("hm"), "{error}");
    }
}

#[test]
fn state_survives_a_panic() {
    let host = host().method("next", |count: &mut i32, ()| {
        *count += 1;
        assert!(*count != 2, "two");
        Ok(*count)
    });
    let mut session = session_with(host).unwrap();
    let next = session.typed::<(), i32>("program.next").unwrap();
    assert_eq!(next.call(&mut session, ()).unwrap(), 1);
    assert!(next.call(&mut session, ()).unwrap_err().message().contains("two"));
    assert_eq!(next.call(&mut session, ()).unwrap(), 3);
}

#[test]
fn what_panics_when_dropped_harms_nobody() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("dropped");
        }
    }
    let bomb = Bomb;
    let next = move |()| {
        let _ = &bomb;
        Ok(1)
    };
    drop(session_with(host().function("next", next)).unwrap());
    let session = session();
    drop(Reference::new(Bomb).unwrap());
    drop(session);
}

#[test]
fn a_function_that_reaches_for_its_session_is_refused() {
    thread_local! {
        static SESSION: RefCell<Option<Session>> = const { RefCell::new(None) };
    }
    fn call() -> Result<i32> {
        SESSION.with_borrow_mut(|session| {
            let session = session.as_mut().unwrap();
            session.typed::<(), i32>("program.next")?.call(session, ())
        })
    }
    let session = session_with(host().function("next", |()| call())).unwrap();
    SESSION.set(Some(session));
    let error = call().unwrap_err();
    assert!(error.message().contains("borrow"), "{error}");
    // A function that drops its own session while it runs gets no further either.
    let session = session_with(host().function("next", |()| {
        SESSION.set(None);
        Ok(1)
    }));
    SESSION.set(Some(session.unwrap()));
    assert!(call().unwrap_err().message().contains("borrow"));
}

#[test]
fn a_function_may_use_another_session() {
    let inner = Mutex::new(session());
    let next = move |()| {
        let mut inner = inner.lock().unwrap();
        let next = inner.typed::<(), i32>("program.next")?;
        next.call(&mut inner, ()).map(|count| count * 100)
    };
    let mut outer = session_with(host().function("next", next)).unwrap();
    let next = outer.typed::<(), i32>("program.next").unwrap();
    assert_eq!(next.call(&mut outer, ()).unwrap(), 100);
    assert_eq!(next.call(&mut outer, ()).unwrap(), 200);
}

#[test]
fn a_tensor_of_another_shape_or_type_is_caught_by_the_program() {
    let run = |view: fn(&BufferView) -> Result<BufferView>| {
        let odd = move |(_, x, _, _, _): (i32, F32, i32, i64, F32)| Ok((1, view(x.view())?));
        let mut session = session_with(host().function("odd", odd)).unwrap();
        let odd = session.function("program.odd").unwrap();
        let x = session.device().buffer_view(&[2], &[1f32, 2.]).unwrap();
        session.call(&odd, (1, x)).unwrap_err()
    };
    let error = run(|x| x.device().buffer_view(&[1], &[1f32]));
    assert_eq!(error.code(), Code::InvalidArgument, "{error}");
    assert!(error.message().contains("dim"), "{error}");
    let error = run(|x| x.device().buffer_view(&[2], &[1i32, 2]));
    assert!(error.message().contains("element type"), "{error}");
    let error = run(|x| device(x.device().uri()).buffer_view(&[2], &[1f32, 2.]));
    assert!(error.message().contains("another device"), "{error}");
}

#[test]
fn a_scalar_in_place_of_a_reference_is_refused() {
    let host = host().function("make", |(number,): (i32,)| Ok(Value::from(number)));
    let mut session = session_with(host).unwrap();
    let object = session.function("program.object").unwrap();
    let error = session.call(&object, [7]).unwrap_err();
    assert!(error.message().contains("result 0: an i32 where !util.object"), "{error}");
    // Other references than the program means are for it to refuse.
    let host = host_of_lists(|| Ok(Value::from("no list")));
    let mut session = session_with(host).unwrap();
    let list = session.function("program.list").unwrap();
    let out = session.call(&list, [Value::List(vec![])]).unwrap();
    assert!(matches!(out.get(0).unwrap(), Value::Bytes(_)));
}

fn host_of_lists(list: fn() -> Result<Value>) -> NativeModule<i32> {
    host().function("list", move |(_,): (Value,)| list())
}

#[test]
fn wrong_values_name_the_argument() {
    let host = host().function("list", |(list,): (Vec<f32>,)| Ok(list));
    let mut session = session_with(host).unwrap();
    let list = session.function("program.list").unwrap();
    let error = session.call(&list, [vec![Value::F32(1.), Value::I32(1)]]).unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    assert!(error.message().contains("argument 0: entry 1: an i32 where f32"), "{error}");

    let host = host_of_lists(|| Ok((0..100).fold(Value::Null, |list, _| Value::List(vec![list]))));
    let mut session = session_with(host).unwrap();
    let list = session.function("program.list").unwrap();
    let error = session.call(&list, [Value::List(vec![])]).unwrap_err();
    assert!(error.message().contains("nested"), "{error}");
}

#[test]
fn missing_and_mismatched_imports_are_named() {
    let missing = NativeModule::new("host").function("all", |_: (i32, i64, f32, f64)| Ok(()));
    let mismatched = host().function("all", |_: (i32,)| Ok(()));
    let build =
        |native| Session::builder(&device("local-sync")).native(native).module(program()).build();
    // Which import comes first is the compiler's business; `all` does not fit here either.
    let error = build(missing).unwrap_err();
    assert!(error.message().contains("host."), "{error}");
    let error = session_with(mismatched).unwrap_err();
    assert!(error.message().contains("host.all"), "{error}");
    assert!(error.message().contains("0iIfF_FiIf"), "{error}");
    let error = Session::builder(&device("local-sync")).module(program()).build().unwrap_err();
    assert_eq!(error.code(), Code::NotFound, "{error}");
    assert!(error.message().contains("host"), "{error}");

    let only_one = NativeModule::new("host").function("next", |()| Ok(1));
    let error = build(only_one).unwrap_err();
    assert_eq!(error.code(), Code::NotFound, "{error}");
    assert!(error.message().contains("function `"), "{error}");
}

#[test]
fn names_are_used_once() {
    for name in ["program", "hal"] {
        let error = session_with(NativeModule::new(name)).unwrap_err();
        assert_eq!(error.code(), Code::AlreadyExists);
        assert!(error.message().contains(name), "{error}");
    }
    // A module without functions is one.
    let empty = Session::builder(&device("local-sync")).native(NativeModule::new("empty"));
    let error = empty.build().unwrap().function("empty.f").unwrap_err();
    assert!(error.message().contains("has none"), "{error}");
    // Of two functions of one name the later stays.
    let host = NativeModule::new("host").function("f", |()| Ok(1)).function("f", |()| Ok(2i64));
    let mut session = Session::builder(&device("local-sync")).native(host).build().unwrap();
    let f = session.typed::<(), i64>("host.f").unwrap();
    assert_eq!(f.call(&mut session, ()).unwrap(), 2);
    let builder = Session::builder(&device("local-sync"));
    let twice = builder.native(host_of_lists(|| Ok(Value::Null))).native(self::host()).build();
    let twice = twice.unwrap_err();
    assert_eq!(twice.code(), Code::AlreadyExists);
}

#[test]
fn native_functions_are_reflected_and_called_directly() {
    let mut session = session();
    let all = session.function("host.all").unwrap();
    assert_eq!(
        all.results(),
        [ScalarType::F64, ScalarType::I32, ScalarType::I64, ScalarType::F32].map(ValueType::Scalar)
    );
    let odd = session.function("host.odd").unwrap();
    assert_eq!(odd.arguments()[1], ValueType::BufferView);
    assert_eq!(session.function("host.print").unwrap().arguments(), [ValueType::Bytes]);
    assert_eq!(session.function("host.list").unwrap().results(), [ValueType::List(None)]);

    let next = session.typed::<(), i32>("host.next").unwrap();
    assert_eq!(next.call(&mut session, ()).unwrap(), 1);
    let list = session.typed::<(Vec<Value>,), Vec<i64>>("host.list").unwrap();
    assert_eq!(list.call(&mut session, (vec![1i64.into()],)).unwrap(), [1]);
    let error = session.function("host.nothing").unwrap_err();
    assert!(error.message().contains("`host.next`"), "{error}");
}

#[test]
fn what_a_function_keeps_outlives_the_session() {
    let kept = Arc::new(Mutex::new(Vec::<BufferView>::new()));
    let keep = kept.clone();
    let odd = move |(_, x, _, _, y): (i32, F32, i32, i64, F32)| {
        keep.lock().unwrap().push(y.into_view());
        Ok((1, x))
    };
    let mut session = session_with(host().function("odd", odd)).unwrap();
    let odd = session.function("program.odd").unwrap();
    for i in 0..3 {
        let x = session.device().buffer_view(&[2], &[i as f32, 2.]).unwrap();
        session.call(&odd, (1, x)).unwrap();
    }
    drop((session, odd));
    for (i, view) in kept.lock().unwrap().iter().enumerate() {
        assert_eq!(view.read::<f32>().unwrap(), [2. * i as f32, 4.]);
    }
}

#[test]
fn sessions_with_native_modules_run_side_by_side() {
    let device = device("local-task");
    let calls = Arc::new(AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..2 {
            let (device, calls) = (&device, calls.clone());
            scope.spawn(move || {
                let next = move |()| Ok(calls.fetch_add(1, Ordering::SeqCst) as i32);
                let host = host().function("next", next);
                let builder = Session::builder(device).native(host);
                let mut session = builder.module(program()).build().unwrap();
                let next = session.function("program.next").unwrap();
                for _ in 0..500 {
                    session.call(&next, ()).unwrap();
                }
            });
        }
    });
    assert_eq!(calls.load(Ordering::SeqCst), 1000);
}

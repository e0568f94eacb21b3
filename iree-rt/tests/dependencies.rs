//! Compiled modules that call each other, and the state that each session has of them.

mod support;

use std::sync::OnceLock;

use iree_rt::{Code, CompileOptions, Module, NativeModule, Session, Tensor, Value};
use support::{compile, device, module};

const COUNTER: &str = r#"
module @counter {
  util.global private mutable @total = 0 : i32
  util.global private mutable @sum = dense<0.0> : tensor<2xf32>
  util.global private @given : i32
  util.initializer {
    %kind = func.call @host.kind() : () -> i32
    util.global.store %kind, @given : i32
    util.return
  }
  func.func private @host.kind() -> i32
  func.func @add(%by: i32) -> i32 {
    %old = util.global.load @total : i32
    %new = arith.addi %old, %by : i32
    util.global.store %new, @total : i32
    return %new : i32
  }
  func.func @accumulate(%x: tensor<2xf32>) -> tensor<2xf32> {
    %old = util.global.load @sum : tensor<2xf32>
    %new = stablehlo.add %old, %x : tensor<2xf32>
    util.global.store %new, @sum : tensor<2xf32>
    return %new : tensor<2xf32>
  }
  func.func @kind() -> i32 {
    %kind = util.global.load @given : i32
    return %kind : i32
  }
}
"#;

const USER: &str = r#"
module @user {
  func.func private @counter.add(i32) -> i32
  func.func private @counter.accumulate(tensor<2xf32>) -> tensor<2xf32>
  func.func @twice(%by: i32) -> i32 {
    %0 = call @counter.add(%by) : (i32) -> i32
    %1 = call @counter.add(%0) : (i32) -> i32
    return %1 : i32
  }
  func.func @accumulate(%x: tensor<2xf32>) -> tensor<2xf32> {
    %0 = stablehlo.add %x, %x : tensor<2xf32>
    %1 = call @counter.accumulate(%0) : (tensor<2xf32>) -> tensor<2xf32>
    %2 = stablehlo.negate %1 : tensor<2xf32>
    return %2 : tensor<2xf32>
  }
}
"#;

const MISTAKEN: &str = "
module @mistaken {
  func.func private @counter.add(i64) -> i32
  func.func @f(%by: i64) -> i32 {
    %0 = call @counter.add(%by) : (i64) -> i32
    return %0 : i32
  }
}";

const LOST: &str = "
module @lost {
  func.func private @counter.subtract(i32) -> i32
  func.func @f(%by: i32) -> i32 {
    %0 = call @counter.subtract(%by) : (i32) -> i32
    return %0 : i32
  }
}";

fn load(source: &str, bytes: &OnceLock<Vec<u8>>) -> Module {
    module(bytes.get_or_init(|| compile(source, &CompileOptions::default())))
}

fn counter() -> Module {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    load(COUNTER, &BYTES)
}

fn user() -> Module {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    load(USER, &BYTES)
}

fn host(kind: i32) -> NativeModule {
    NativeModule::new("host").function("kind", move |()| Ok(kind))
}

fn session(uri: &str, kind: i32) -> Session {
    let builder = Session::builder(&device(uri)).native(host(kind));
    builder.module(counter()).module(user()).build().unwrap()
}

fn call(session: &mut Session, name: &str, argument: i32) -> i32 {
    let function = session.typed::<(i32,), i32>(name).unwrap();
    function.call(session, (argument,)).unwrap()
}

#[test]
fn a_module_calls_another_and_shares_its_state() {
    for uri in ["local-sync", "local-task"] {
        let mut session = session(uri, 1);
        assert_eq!(call(&mut session, "user.twice", 5), 10);
        assert_eq!(call(&mut session, "counter.add", 1), 11);
        assert_eq!(call(&mut session, "user.twice", 0), 22);

        type F32 = Tensor<f32>;
        let through_user = session.typed::<(F32,), F32>("user.accumulate").unwrap();
        let direct = session.typed::<(F32,), F32>("counter.accumulate").unwrap();
        let x = F32::try_from(session.device().buffer_view(&[2], &[1f32, 2.]).unwrap()).unwrap();
        let out = through_user.call(&mut session, (x.clone(),)).unwrap();
        assert_eq!(out.read().unwrap(), [-2., -4.]);
        assert_eq!(direct.call(&mut session, (x,)).unwrap().read().unwrap(), [3., 6.]);
        // What was returned before stays as it was.
        assert_eq!(out.read().unwrap(), [-2., -4.]);
    }
}

#[test]
fn each_session_has_its_own_state() {
    let device = device("local-sync");
    let (counter, user) = (counter(), user());
    let build = |kind| {
        let builder = Session::builder(&device).native(host(kind));
        builder.module(counter.clone()).module(user.clone()).build().unwrap()
    };
    let (mut first, mut second) = (build(1), build(2));
    assert_eq!(call(&mut first, "user.twice", 5), 10);
    assert_eq!(call(&mut second, "user.twice", 1), 2);
    assert_eq!(call(&mut first, "counter.add", 1), 11);
    drop(first);
    assert_eq!(call(&mut second, "counter.add", 1), 3);
    // Initializers run in each, and may call what is loaded already.
    let kind = second.typed::<(), i32>("counter.kind").unwrap();
    assert_eq!(kind.call(&mut second, ()).unwrap(), 2);
    let mut third = build(3);
    let kind = third.typed::<(), i32>("counter.kind").unwrap();
    assert_eq!(kind.call(&mut third, ()).unwrap(), 3);
}

#[test]
fn a_missing_import_is_named() {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    let device = device("local-sync");
    // The module is missing, or comes too late.
    for builder in [
        Session::builder(&device).module(user()),
        Session::builder(&device).native(host(1)).module(user()).module(counter()),
    ] {
        let error = builder.build().unwrap_err();
        assert_eq!(error.code(), Code::NotFound, "{error}");
        assert!(error.message().contains("counter"), "{error}");
        assert!(error.message().contains("'user'"), "{error}");
    }
    // The function is.
    let builder = Session::builder(&device).native(host(1)).module(counter());
    let error = builder.module(load(LOST, &BYTES)).build().unwrap_err();
    assert_eq!(error.code(), Code::NotFound, "{error}");
    assert!(error.message().contains("`subtract`"), "{error}");
    assert!(error.message().contains("'lost'"), "{error}");
}

#[test]
fn an_import_of_other_types_is_named() {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    let builder = Session::builder(&device("local-sync")).native(host(1)).module(counter());
    let error = builder.module(load(MISTAKEN, &BYTES)).build().unwrap_err();
    assert_eq!(error.code(), Code::Internal, "{error}");
    assert!(error.message().contains("counter.add"), "{error}");
    assert!(error.message().contains("0I_i") && error.message().contains("0i_i"), "{error}");
}

#[test]
fn an_initializer_that_fails_fails_the_session() {
    let host = NativeModule::new("host").function("kind", |()| -> iree_rt::Result<i32> {
        Err(iree_rt::Error::new(Code::Unavailable, "no kind today"))
    });
    let error = Session::builder(&device("local-sync"))
        .native(host)
        .module(counter())
        .module(user())
        .build()
        .unwrap_err();
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    assert!(error.message().contains("no kind today"), "{error}");
}

#[test]
fn a_native_module_takes_the_place_of_a_compiled_one() {
    let counter = NativeModule::with_state("counter", 100)
        .method("add", |total, (by,): (i32,)| {
            *total += by;
            Ok(*total)
        })
        .function("accumulate", |(x,): (Value,)| Ok(x));
    let builder = Session::builder(&device("local-sync")).native(counter);
    let mut session = builder.module(user()).build().unwrap();
    assert_eq!(call(&mut session, "user.twice", 5), 210);
}

/// `parameters` has the test of what is said with the feature.
#[test]
#[cfg(not(feature = "parameters"))]
fn without_the_feature_a_program_with_parameters_is_told_so() {
    let source = r#"module @program {
        util.global private @w = #flow.parameter.named<"model"::"w"> : tensor<4xf32>
        func.func @run() -> tensor<4xf32> {
          %w = util.global.load @w : tensor<4xf32>
          return %w : tensor<4xf32>
        } }"#;
    let program = module(&compile(source, &CompileOptions::default()));
    let error = Session::builder(&device("local-sync")).module(program).build().unwrap_err();
    assert!(error.message().contains("feature `parameters`"), "{error}");
}

//! What programs trace, and what the allocator counts.

use std::sync::{Arc, Mutex, OnceLock};

use crate::support::{compile, device, module};
use iree_rt::{
    BufferView, Code, CompileOptions, Error, MemoryStatistics, Module, Result, Session,
    SessionBuilder,
};

const PROGRAM: &str = r#"
module @program {
  func.func @run(%a: tensor<4xf32>, %n: tensor<i32>) -> tensor<4xf32> {
    %0 = stablehlo.add %a, %a : tensor<4xf32>
    flow.tensor.trace "both" = [%0 : tensor<4xf32>, %n : tensor<i32>]
    %1 = stablehlo.negate %0 : tensor<4xf32>
    flow.tensor.trace "last" = [%1 : tensor<4xf32>]
    return %1 : tensor<4xf32>
  }
}
"#;

fn program() -> Module {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    module(BYTES.get_or_init(|| compile(PROGRAM, &CompileOptions::default())))
}

fn build(uri: &str, with: impl FnOnce(SessionBuilder) -> SessionBuilder) -> Session {
    with(Session::builder(&device(uri)).module(program())).build().unwrap()
}

fn run(session: &mut Session, first: f32) -> Result<Vec<f32>> {
    let function = session.function("program.run")?;
    let a = session.device().buffer_view(&[4], &[first, 2., 3., 4.])?;
    let n = session.device().buffer_view(&[], &[7i32])?;
    session.call(&function, (a, n))?.view(0)?.read()
}

#[test]
fn traces_arrive_in_order_with_key_and_tensors() {
    for uri in ["local-sync", "local-task"] {
        let seen = Arc::new(Mutex::new(Vec::<(String, Vec<BufferView>)>::new()));
        let sink = seen.clone();
        let mut session = build(uri, |builder| {
            builder.on_trace(move |key, tensors| {
                sink.lock().unwrap().push((key.to_owned(), tensors.to_vec()));
                Ok(())
            })
        });
        for first in [1., 10.] {
            assert_eq!(run(&mut session, first).unwrap()[0], -2. * first);
        }
        drop(session);
        // What was kept is whole after later calls, and after the session.
        let seen = seen.lock().unwrap();
        let keys: Vec<&str> = seen.iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(keys, ["both", "last", "both", "last"]);
        for (call, first) in [(0, 1.), (1, 10.)] {
            let both = &seen[call * 2].1;
            assert_eq!(both[0].read::<f32>().unwrap(), [2. * first, 4., 6., 8.]);
            assert_eq!(both[1].read::<i32>().unwrap(), [7]);
            let last = &seen[call * 2 + 1].1;
            assert_eq!(last[0].read::<f32>().unwrap(), [-2. * first, -4., -6., -8.]);
        }
    }
}

#[test]
fn an_error_or_panic_of_the_sink_is_the_calls() {
    let mut session = build("local-sync", |builder| {
        builder.on_trace(|key, _| match key {
            "last" => Err(Error::new(Code::OutOfRange, "enough")),
            _ => Ok(()),
        })
    });
    let error = run(&mut session, 1.).unwrap_err();
    assert_eq!(error.code(), Code::OutOfRange);
    assert!(error.message().contains("trace `last`: enough"), "{error}");

    let mut calls = 0;
    let mut session = build("local-sync", |builder| {
        builder.on_trace(move |_, _| {
            calls += 1;
            assert!(calls != 1, "the first");
            Ok(())
        })
    });
    let error = run(&mut session, 1.).unwrap_err();
    assert!(error.message().contains("panicked: the first"), "{error}");
    assert_eq!(run(&mut session, 1.).unwrap()[0], -2.);
}

#[test]
fn nothing_is_told_without_a_sink() {
    let mut session = build("local-task", |builder| builder);
    assert_eq!(run(&mut session, 1.).unwrap()[0], -2.);
}

#[test]
fn sinks_are_dropped_with_their_sessions() {
    let sink = Arc::new(());
    let held = sink.clone();
    let on_trace = move |_: &str, _: &[BufferView]| {
        let _ = &held;
        Ok(())
    };
    let session = build("local-sync", |builder| builder.on_trace(on_trace));
    assert_eq!(Arc::strong_count(&sink), 2);
    drop(session);
    assert_eq!(Arc::strong_count(&sink), 1);
    // Of a session that could not be made, too.
    let held = sink.clone();
    let builder = Session::builder(&device("local-sync")).module(program()).module(program());
    let failed = builder.on_trace(move |_, _| {
        let _ = &held;
        Ok(())
    });
    assert!(failed.build().is_err());
    assert_eq!(Arc::strong_count(&sink), 1);
}

/// In a process of its own, as IREE writes to the standard error stream.
#[test]
fn execution_is_traced_or_refused() {
    const CHILD: &str = "IREE_RT_TEST_TRACES";
    if std::env::var_os(CHILD).is_some() {
        let builder = Session::builder(&device("local-sync")).module(program());
        match builder.trace_execution(true).build() {
            Ok(mut session) => assert_eq!(run(&mut session, 1.).unwrap()[0], -2.),
            Err(error) => {
                assert_eq!(error.code(), Code::Unimplemented);
                eprintln!("refused: {error}");
            }
        }
        return;
    }
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "trace::execution_is_traced_or_refused", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let traced = errors.contains("vm.call @hal.");
    let refused = errors.contains("refused: ") && errors.contains("--vm-trace");
    assert!(traced != refused, "{errors}");
}

#[test]
fn memory_is_counted() {
    for uri in ["local-sync", "local-task"] {
        let device = device(uri);
        assert_eq!(device.memory_statistics(), MemoryStatistics::default());
        let before = device.memory_statistics().device;
        let buffer = iree_rt::Buffer::allocate(&device, 1 << 20).unwrap();
        let during = device.memory_statistics().device;
        assert!(during.live() >= before.live() + (1 << 20), "{uri}: {during:?}");
        drop(buffer);
        let after = device.memory_statistics().device;
        assert_eq!(after.live(), before.live(), "{uri}: {after:?}");
        assert!(after.peak >= 1 << 20 && after.allocated >= 1 << 20, "{uri}: {after:?}");
    }
}

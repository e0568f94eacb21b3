//! What programs write to providers of parameters in Rust.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;

use crate::support::in_flight::{self, SHORT};
use crate::support::{BOTH_CPU_DEVICES, compile, device, module};
use iree_rt::{
    Code, CompileOptions, Error, Fence, Function, Module, ParameterIndex, ParameterProvider,
    Result, Session,
};

const PROGRAM: &str = r#"
module @writer {
  func.func @save(%a: tensor<4xf32>) -> tensor<4xf32> {
    %scope = util.buffer.constant : !util.buffer = "model"
    %key = util.buffer.constant : !util.buffer = "sum"
    %offset = arith.constant 0 : i64
    %0 = stablehlo.add %a, %a : tensor<4xf32>
    %1 = flow.parameter.write %0 -> %scope::%key[%offset] : tensor<4xf32>
    return %1 : tensor<4xf32>
  }
  func.func @save_end(%a: tensor<2xf32>) -> tensor<2xf32> {
    %scope = util.buffer.constant : !util.buffer = "model"
    %key = util.buffer.constant : !util.buffer = "sum"
    %offset = arith.constant 8 : i64
    %0 = stablehlo.negate %a : tensor<2xf32>
    %1 = flow.parameter.write %0 -> %scope::%key[%offset] : tensor<2xf32>
    return %1 : tensor<2xf32>
  }
  func.func @save_two(%a: tensor<4xf32>) -> (tensor<4xf32>, tensor<2xi8>) {
    %scope = util.buffer.constant : !util.buffer = "model"
    %sum = util.buffer.constant : !util.buffer = "sum"
    %flags = util.buffer.constant : !util.buffer = "flags"
    %offset = arith.constant 0 : i64
    %0 = stablehlo.add %a, %a : tensor<4xf32>
    %1 = stablehlo.constant dense<[1, 2]> : tensor<2xi8>
    %2 = flow.parameter.write %0 -> %scope::%sum[%offset] : tensor<4xf32>
    %3 = flow.parameter.write %1 -> %scope::%flags[%offset] : tensor<2xi8>
    return %2, %3 : tensor<4xf32>, tensor<2xi8>
  }
}
"#;

/// Reads what the other wrote.
const READER: &str = r#"
module @reader {
  util.global private @sum = #flow.parameter.named<"model"::"sum"> : tensor<4xf32>
  func.func @saved(%a: tensor<4xf32>) -> tensor<4xf32> {
    %0 = util.global.load @sum : tensor<4xf32>
    %1 = stablehlo.add %a, %0 : tensor<4xf32>
    return %1 : tensor<4xf32>
  }
}
"#;

fn program() -> Module {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    let options = CompileOptions::default().flag("--iree-opt-const-eval=false");
    module(BYTES.get_or_init(|| compile(PROGRAM, &options)))
}

fn reader() -> Module {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    module(BYTES.get_or_init(|| compile(READER, &CompileOptions::default())))
}

/// Keeps what is written to `model`.
#[derive(Clone, Default)]
struct Saved(Arc<Mutex<BTreeMap<String, Vec<u8>>>>);

impl Saved {
    fn floats(&self, name: &str) -> Vec<f32> {
        let bytes = &self.0.lock().unwrap()[name];
        bytes.chunks_exact(4).map(|float| f32::from_le_bytes(float.try_into().unwrap())).collect()
    }
}

impl ParameterProvider for Saved {
    fn supports(&self, scope: &str) -> bool {
        scope == "model"
    }

    fn load(&self, _scope: &str, name: &str) -> Result<Vec<u8>> {
        let saved = self.0.lock().unwrap().get(name).cloned();
        saved.ok_or_else(|| Error::new(Code::NotFound, "nothing was saved"))
    }

    fn write(&self, scope: &str, name: &str, offset: u64, data: &[u8]) -> Result<()> {
        assert_eq!(scope, "model");
        let mut saved = self.0.lock().unwrap();
        let bytes = saved.entry(name.to_owned()).or_default();
        let start = usize::try_from(offset).unwrap();
        bytes.resize(bytes.len().max(start + data.len()), 0);
        bytes[start..start + data.len()].copy_from_slice(data);
        Ok(())
    }
}

/// A provider that writes as the function says.
struct Writes(fn(&str) -> Result<()>);

impl ParameterProvider for Writes {
    fn supports(&self, scope: &str) -> bool {
        scope == "model"
    }

    fn load(&self, _scope: &str, _name: &str) -> Result<Vec<u8>> {
        unreachable!("nothing is loaded")
    }

    fn write(&self, _scope: &str, name: &str, _offset: u64, _data: &[u8]) -> Result<()> {
        (self.0)(name)
    }
}

fn session(uri: &str, provider: impl ParameterProvider + 'static) -> Session {
    let builder = Session::builder(&device(uri)).parameter_provider(provider);
    builder.module(program()).build().unwrap()
}

fn call(session: &mut Session, name: &str, floats: &[f32]) -> Result<Vec<f32>> {
    let function = session.function(name)?;
    let a = session.device().buffer_view(&[floats.len()], floats)?;
    session.call(&function, [a])?.view(0)?.read()
}

#[test]
fn what_programs_write_is_there_when_the_call_returns() {
    for uri in BOTH_CPU_DEVICES {
        let saved = Saved::default();
        let mut session = session(uri, saved.clone());
        let device = session.device().clone();
        let read = |saved: &Saved| {
            let builder = Session::builder(&device).parameter_provider(saved.clone());
            let mut reader = builder.module(reader()).build()?;
            call(&mut reader, "reader.saved", &[1.; 4])
        };
        let error = read(&saved).unwrap_err();
        assert_eq!(error.code(), Code::NotFound, "{error}");

        for round in 1..4 {
            let x = round as f32;
            let sum = call(&mut session, "writer.save", &[x, 2., 3., 4.]).unwrap();
            assert_eq!(sum, [2. * x, 4., 6., 8.]);
            assert_eq!(saved.floats("sum"), sum, "{uri}");
        }
        assert_eq!(read(&saved).unwrap(), [7., 5., 7., 9.], "{uri}");

        // A part.
        call(&mut session, "writer.save_end", &[1., 2.]).unwrap();
        assert_eq!(saved.floats("sum"), [6., 4., -1., -2.], "{uri}");

        // Two in one request.
        call(&mut session, "writer.save_two", &[10.; 4]).unwrap();
        assert_eq!(saved.floats("sum"), [20.; 4], "{uri}");
        assert_eq!(saved.0.lock().unwrap()["flags"], [1, 2], "{uri}");
    }
}

#[test]
fn a_write_that_fails_fails_its_call_only() {
    for uri in BOTH_CPU_DEVICES {
        let error_of = |write| {
            let mut session = session(uri, Writes(write));
            let error = call(&mut session, "writer.save", &[1.; 4]).unwrap_err();
            assert!(
                error.message().contains("writing parameter `sum` of scope `model`"),
                "{error}"
            );
            error
        };
        let error = error_of(|name| Err(Error::new(Code::DataLoss, format!("no room for {name}"))));
        assert_eq!(error.code(), Code::DataLoss, "{error}");
        assert!(error.message().contains("no room for sum"), "{error}");
    }
    for uri in BOTH_CPU_DEVICES {
        let mut session = session(uri, Writes(|name| panic!("cannot write {name}")));
        for _ in 0..2 {
            let error = call(&mut session, "writer.save", &[1.; 4]).unwrap_err();
            assert_eq!(error.code(), Code::Internal, "{error}");
            assert!(error.message().contains("panicked: cannot write sum"), "{error}");
        }
    }
}

#[test]
fn what_takes_no_writes_says_so() {
    struct Reads;
    impl ParameterProvider for Reads {
        fn supports(&self, scope: &str) -> bool {
            scope == "model"
        }

        fn load(&self, _scope: &str, _name: &str) -> Result<Vec<u8>> {
            Ok(1f32.to_le_bytes().repeat(4))
        }
    }
    let mut session = session("local-task", Reads);
    let error = call(&mut session, "writer.save", &[1.; 4]).unwrap_err();
    assert_eq!(error.code(), Code::Unimplemented, "{error}");
    assert!(error.message().contains("takes nothing that programs write"), "{error}");

    let index = ParameterIndex::new().unwrap();
    index.add("sum", &[5f32; 4], b"").unwrap();
    let builder = Session::builder(&device("local-task")).parameters("model", &index);
    let mut session = builder.module(program()).build().unwrap();
    let error = call(&mut session, "writer.save", &[1.; 4]).unwrap_err();
    assert_eq!(error.code(), Code::Unimplemented, "{error}");
    assert!(error.message().contains("parameters of an index are not written"), "{error}");
    assert_eq!(index.read("sum").unwrap(), 5f32.to_le_bytes().repeat(4));
}

/// A session whose functions are called with [`Session::call_async`], and `save` of it.
fn in_flight(saved: Saved) -> (Session, Function) {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    let options = in_flight::options().flag("--iree-opt-const-eval=false");
    let program = module(BYTES.get_or_init(|| compile(PROGRAM, &options)));
    let builder = Session::builder(&device("local-task")).parameter_provider(saved);
    let session = builder.module(program).build().unwrap();
    let save = session.function("writer.save").unwrap();
    (session, save)
}

#[test]
fn a_call_in_flight_waits_for_what_it_writes() {
    let saved = Saved::default();
    let (mut session, save) = in_flight(saved.clone());
    let device = session.device().clone();
    let (signal, before) = Fence::new(&device).unwrap();
    let signaller = thread::spawn({
        let saved = saved.clone();
        move || {
            thread::sleep(SHORT);
            assert!(saved.0.lock().unwrap().is_empty());
            signal.signal().unwrap();
        }
    });
    let pending = session.call_async(&save, [in_flight::ones(&device)], Some(&before)).unwrap();
    let out = pollster::block_on(pending).unwrap();
    signaller.join().unwrap();
    assert_eq!(out.view(0).unwrap().read::<f32>().unwrap(), [2.; 4]);
    assert_eq!(saved.floats("sum"), [2.; 4]);
}

#[test]
fn nothing_is_written_after_what_failed_before() {
    let saved = Saved::default();
    let (mut session, save) = in_flight(saved.clone());
    let device = session.device().clone();
    let (signal, before) = Fence::new(&device).unwrap();
    signal.fail(&Error::new(Code::Aborted, "the user changed their mind"));
    let error = session
        .call_async(&save, [in_flight::ones(&device)], Some(&before))
        .and_then(pollster::block_on)
        .unwrap_err();
    assert_eq!(error.code(), Code::Aborted, "{error}");
    assert!(error.message().contains("changed their mind"), "{error}");
    assert!(saved.0.lock().unwrap().is_empty());
}

//! Arguments that compiled code would read or write out of bounds for are refused before a call, by
//! what the program says of them or by a validator. Nothing here runs such a call unprotected.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::support::in_flight::SHORT;
use crate::support::{compile, device, module};
use iree_rt::{
    BufferView, Code, CompileOptions, Device, Error, Fence, Module, NativeModule, Result, Session,
    Tensor, Value,
};

/// Functions that trust their callers; `add` and `sum` say what they trust them in.
const TRUSTING: &str = r#"
module @trusting {
  func.func @add(%a: tensor<?xf32> {iree.abi.name = "left"}, %b: tensor<?xf32>) -> tensor<?xf32>
      attributes {iree.reflection = {"iree_rt.shapes" = "n; n"}} {
    %0 = stablehlo.add %a, %b : tensor<?xf32>
    return %0 : tensor<?xf32>
  }
  func.func @sum(%n: i32, %a: tensor<?x2xf32>, %b: tensor<2x?xf32>) -> i32
      attributes {iree.reflection = {"iree_rt.shapes" = ";rows,2;?,rows"}} {
    return %n : i32
  }
  func.func @extract(%a: tensor<?xf32>, %at: tensor<i32>) -> f32 {
    %at_scalar = tensor.extract %at[] : tensor<i32>
    %index = arith.index_cast %at_scalar : i32 to index
    %0 = tensor.extract %a[%index] : tensor<?xf32>
    return %0 : f32
  }
  func.func @insert(%into: tensor<?xf32>, %a: tensor<?xf32>) -> tensor<?xf32> {
    %c0 = arith.constant 0 : index
    %n = tensor.dim %a, %c0 : tensor<?xf32>
    %0 = tensor.insert_slice %a into %into[0] [%n] [1] : tensor<?xf32> into tensor<?xf32>
    return %0 : tensor<?xf32>
  }
}"#;

fn trusting(flags: &[&str]) -> Module {
    let mut options = CompileOptions::default();
    for flag in flags {
        options = options.flag(*flag);
    }
    module(&compile(TRUSTING, &options))
}

const ASYNC: &str = "--iree-execution-model=async-external";

fn sync() -> Module {
    static MODULE: OnceLock<Module> = OnceLock::new();
    MODULE.get_or_init(|| trusting(&[])).clone()
}

fn floats(device: &Device, count: usize) -> BufferView {
    device.buffer_view(&[count], &vec![1f32; count]).unwrap()
}

fn refused<T: std::fmt::Debug>(result: Result<T>, code: Code, parts: &[&str]) {
    let error = result.unwrap_err();
    assert_eq!(error.code(), code, "{error}");
    for part in parts {
        assert!(error.message().contains(part), "no {part} in {error}");
    }
}

const UNEQUAL: [&str; 4] = [
    "calling `trusting.add`",
    "dimension 0 of argument 1 is 1",
    "dimension 0 of argument 0 (`left`) is 16384",
    "both are `n`",
];

#[test]
fn extents_that_are_said_to_be_equal_are() {
    let device = device("local-task");
    let mut session = Session::builder(&device).module(sync()).build().unwrap();
    let (long, short) = (floats(&device, 16384), floats(&device, 1));
    let add = session.function("trusting.add").unwrap();
    refused(session.call(&add, [&long, &short]), Code::InvalidArgument, &UNEQUAL);
    type F32 = Tensor<f32>;
    let typed = session.typed::<(&BufferView, &BufferView), F32>("trusting.add").unwrap();
    refused(typed.call(&mut session, (&long, &short)), Code::InvalidArgument, &UNEQUAL);

    // A prepared call is checked as it is when it is invoked.
    let mut call = session.prepare(&add).unwrap();
    call.set(1, &short).unwrap();
    call.set(0, &short).unwrap();
    call.invoke(&mut session).unwrap();
    call.set(0, &long).unwrap();
    refused(call.invoke(&mut session), Code::InvalidArgument, &UNEQUAL);
    call.set(1, &long).unwrap();
    call.invoke(&mut session).unwrap();
    let sum = call.outputs().view(0).unwrap().read::<f32>().unwrap();
    assert!(sum.len() == 16384 && sum.iter().all(|x| *x == 2.));
}

#[test]
fn extents_are_checked_of_calls_in_flight() {
    let device = device("local-task");
    let module = trusting(&[ASYNC]);
    let mut session = Session::builder(&device).module(module).build().unwrap();
    let (long, short) = (floats(&device, 16384), floats(&device, 1));
    let add = session.function("trusting.add").unwrap();
    refused(session.call(&add, [&long, &short]), Code::InvalidArgument, &UNEQUAL);
    refused(session.call_async(&add, [&long, &short], None), Code::InvalidArgument, &UNEQUAL);
    let running = session.call_async(&add, [&long, &long], None).unwrap();
    let out = pollster::block_on(running).unwrap();
    assert_eq!(out.view(0).unwrap().shape(), [16384]);
}

#[test]
fn names_reach_over_dimensions_of_any_place() {
    let device = device("local-sync");
    let mut session = Session::builder(&device).module(sync()).build().unwrap();
    let sum = session.function("trusting.sum").unwrap();
    let tensor = |shape: [usize; 2]| device.buffer_view(&shape, &vec![0f32; shape[0] * shape[1]]);
    let call = |session: &mut Session, a, b| {
        session.call(&sum, (7, tensor(a).unwrap(), tensor(b).unwrap()))?.get(0)
    };
    assert!(matches!(call(&mut session, [3, 2], [2, 3]), Ok(Value::I32(7))));
    refused(
        call(&mut session, [3, 2], [2, 4]),
        Code::InvalidArgument,
        &["dimension 1 of argument 2 is 4", "dimension 0 of argument 1 is 3", "`rows`"],
    );
}

#[test]
fn what_cannot_be_read_is_refused_at_lookup() {
    for (shapes, part) in [
        ("n", "it is of 1 arguments, not 2"),
        ("n;n,m", "argument 1 has rank 1, not 2"),
        ("n;-1", "`-1` is no extent"),
    ] {
        let source = TRUSTING.replace("n; n", shapes);
        let bytes = compile(&source, &CompileOptions::default());
        let module = module(&bytes);
        let listed = module.functions().map(|functions| functions.len());
        refused(listed, Code::InvalidArgument, &["iree_rt.shapes", "`add`", part]);
        let session = Session::builder(&device("local-sync")).module(module).build().unwrap();
        refused(session.function("trusting.add"), Code::InvalidArgument, &[part]);
        assert!(session.function("trusting.extract").is_ok(), "another function has no such thing");
    }
}

/// The index has to be in the tensor.
fn inside(arguments: &[Value]) -> Result<()> {
    let [Value::BufferView(tensor), Value::BufferView(at)] = arguments else {
        return Err(Error::new(Code::Internal, format!("other arguments: {arguments:?}")));
    };
    let at = at.read::<i32>()?[0];
    if (0..tensor.shape()[0] as i64).contains(&i64::from(at)) {
        return Ok(());
    }
    Err(Error::new(Code::OutOfRange, format!("no element {at} in {tensor:?}")))
}

const OUTSIDE: [&str; 2] = ["calling `trusting.extract`", "no element 1048576 in BufferView(4xf32"];

#[test]
fn a_validator_refuses_calls_of_every_kind() {
    let device = device("local-task");
    for flags in [&[][..], &[ASYNC]] {
        let mut session = Session::builder(&device)
            .module(trusting(flags))
            .validate("trusting.extract", inside)
            .build()
            .unwrap();
        let extract = session.function("trusting.extract").unwrap();
        let a = device.buffer_view(&[4], &[1f32, 2., 3., 4.]).unwrap();
        let index = |at: i32| device.buffer_view(&[], &[at]).unwrap();
        let out = session.call(&extract, [&a, &index(2)]).unwrap().get(0).unwrap();
        assert!(matches!(out, Value::F32(3.)), "{out:?}");
        let far = index(1 << 20);
        refused(session.call(&extract, [&a, &far]), Code::OutOfRange, &OUTSIDE);
        let typed = session.typed::<[&BufferView; 2], f32>("trusting.extract").unwrap();
        refused(typed.call(&mut session, [&a, &far]), Code::OutOfRange, &OUTSIDE);
        let mut call = session.prepare(&extract).unwrap();
        call.set(0, &a).unwrap();
        call.set(1, &far).unwrap();
        refused(call.invoke(&mut session), Code::OutOfRange, &OUTSIDE);
        if extract.coarse_fences() {
            refused(session.call_async(&extract, [&a, &far], None), Code::OutOfRange, &OUTSIDE);
            let refusal = typed.call_async(&mut session, [&a, &far], None);
            refused(refusal, Code::OutOfRange, &OUTSIDE);
        }
        let (a, far) = (a.clone(), far.clone());
        let session = session.into_async().unwrap();
        let refusal = session.run(move |session| session.call(&extract, [&a, &far]));
        refused(pollster::block_on(refusal), Code::OutOfRange, &OUTSIDE);
    }
}

#[test]
fn an_operand_that_does_not_fit_is_refused() {
    let device = device("local-task");
    let fits = |arguments: &[Value]| match arguments {
        [Value::BufferView(into), Value::BufferView(a)] if a.shape()[0] <= into.shape()[0] => {
            Ok(())
        }
        _ => Err(Error::new(Code::InvalidArgument, "larger than what it goes into")),
    };
    let mut session =
        Session::builder(&device).module(sync()).validate("trusting.insert", fits).build().unwrap();
    let insert = session.function("trusting.insert").unwrap();
    let zeros = device.buffer_view(&[3], &[0f32; 3]).unwrap();
    let out = session.call(&insert, [&zeros, &floats(&device, 2)]).unwrap();
    assert_eq!(out.view(0).unwrap().read::<f32>().unwrap(), [1., 1., 0.]);
    let refusal = session.call(&insert, [&zeros, &floats(&device, 1 << 20)]);
    refused(
        refusal,
        Code::InvalidArgument,
        &["`trusting.insert`", "larger than what it goes into"],
    );
}

/// What a validator reads has been computed.
#[test]
fn a_validator_looks_when_the_arguments_are_there() {
    let device = device("local-task");
    let looked = Arc::new(AtomicUsize::new(0));
    let count = looked.clone();
    let mut session = Session::builder(&device)
        .module(trusting(&[ASYNC]))
        .validate("trusting.extract", move |arguments| {
            count.fetch_add(1, Ordering::SeqCst);
            inside(arguments)
        })
        .build()
        .unwrap();
    let extract = session.function("trusting.extract").unwrap();
    let (a, at) = (floats(&device, 4), device.buffer_view(&[], &[1 << 20]).unwrap());
    let (go, ready) = Fence::new(&device).unwrap();
    let started =
        std::thread::spawn(move || session.call_async(&extract, [a, at], Some(&ready)).map(drop));
    std::thread::sleep(SHORT);
    assert_eq!(looked.load(Ordering::SeqCst), 0, "it waits for the fence");
    go.signal().unwrap();
    refused(started.join().unwrap(), Code::OutOfRange, &OUTSIDE);
    assert_eq!(looked.load(Ordering::SeqCst), 1);

    // A fence that fails is the error of the call.
    let mut session = Session::builder(&device)
        .module(trusting(&[ASYNC]))
        .validate("trusting.extract", inside)
        .build()
        .unwrap();
    let extract = session.function("trusting.extract").unwrap();
    let (a, at) = (floats(&device, 4), device.buffer_view(&[], &[1]).unwrap());
    let (go, ready) = Fence::new(&device).unwrap();
    go.fail(&Error::new(Code::DataLoss, "lost"));
    let error = session.call_async(&extract, [&a, &at], Some(&ready)).map(drop).unwrap_err();
    assert_eq!(error.code(), Code::DataLoss, "{error}");
    assert!(session.call(&extract, [a, at]).is_ok());
}

#[test]
fn validators_keep_state_and_are_of_functions_that_there_are() {
    let device = device("local-sync");
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = seen.clone();
    let build = |name: &str, log: Arc<Mutex<Vec<i32>>>| {
        let host = NativeModule::new("host").function("twice", |(x,): (i32,)| Ok(2 * x));
        Session::builder(&device).native(host).validate(name, move |arguments| match arguments {
            [Value::I32(x)] if *x >= 0 => {
                log.lock().unwrap().push(*x);
                Ok(())
            }
            _ => Err(Error::new(Code::OutOfRange, "negative")),
        })
    };
    let mut session = build("host.twice", log.clone()).build().unwrap();
    let twice = session.function("host.twice").unwrap();
    for x in [1, 5] {
        assert!(
            matches!(session.call(&twice, [x]).unwrap().get(0), Ok(Value::I32(y)) if y == 2 * x)
        );
    }
    refused(session.call(&twice, [-1]), Code::OutOfRange, &["calling `host.twice`: negative"]);
    assert_eq!(*seen.lock().unwrap(), [1, 5]);
    refused(build("host.thrice", log).build(), Code::NotFound, &["validating", "`host.thrice`"]);
}

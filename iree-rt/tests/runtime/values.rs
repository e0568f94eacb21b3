//! Lists, bytes and references as arguments and results of compiled functions.

use std::sync::OnceLock;

use crate::support::{compile, device, module};
use iree_rt::{
    Code, CompileOptions, Error, Reference, ScalarType, Session, SessionBuilder, Tensor, Value,
    ValueType,
};

const PROGRAM: &str = r#"
module @lists {
  util.global private mutable @kept : !util.list<?>
  func.func @same(%l: !util.list<?>) -> !util.list<?> {
    return %l : !util.list<?>
  }
  func.func @bytes(%b: !util.buffer) -> (!util.buffer, index) {
    %n = util.buffer.size %b : !util.buffer
    return %b, %n : !util.buffer, index
  }
  func.func @first(%l: !util.list<i32>) -> (!util.list<i32>, i32, index) {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %n = util.list.size %l : !util.list<i32>
    %x = util.list.get %l[%c0] : !util.list<i32> -> i32
    %o = util.list.create %c1 : !util.list<i32>
    util.list.resize %o, %c1 : !util.list<i32>
    util.list.set %o[%c0], %x : i32 -> !util.list<i32>
    return %o, %x, %n : !util.list<i32>, i32, index
  }
  func.func @narrow(%a: i8) -> !util.list<i8> {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %o = util.list.create %c1 : !util.list<i8>
    util.list.resize %o, %c1 : !util.list<i8>
    util.list.set %o[%c0], %a : i8 -> !util.list<i8>
    return %o : !util.list<i8>
  }
  func.func @append(%l: !util.list<?>, %x: i32) -> !util.list<?> {
    %c1 = arith.constant 1 : index
    %n = util.list.size %l : !util.list<?>
    %m = arith.addi %n, %c1 : index
    util.list.resize %l, %m : !util.list<?>
    util.list.set %l[%n], %x : i32 -> !util.list<?>
    return %l : !util.list<?>
  }
  func.func @keep(%l: !util.list<?>) -> !util.list<?> {
    util.global.store %l, @kept : !util.list<?>
    return %l : !util.list<?>
  }
  func.func @change(%x: i32) -> !util.list<?> {
    %c0 = arith.constant 0 : index
    %l = util.global.load @kept : !util.list<?>
    util.list.set %l[%c0], %x : i32 -> !util.list<?>
    return %l : !util.list<?>
  }
  func.func @keep_and_fail(%l: !util.list<?>) -> (!util.list<?>, !util.list<?>) {
    util.global.store %l, @kept : !util.list<?>
    %e = call @endless() : () -> !util.list<?>
    return %e, %l : !util.list<?>, !util.list<?>
  }
  func.func @endless() -> !util.list<?> {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %l = util.list.create %c1 : !util.list<?>
    util.list.resize %l, %c1 : !util.list<?>
    util.list.set %l[%c0], %l : !util.list<?> -> !util.list<?>
    return %l : !util.list<?>
  }
  func.func @object(%o: !util.object) -> (!util.object, !util.list<?>) {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %l = util.list.create %c1 : !util.list<?>
    util.list.resize %l, %c1 : !util.list<?>
    util.list.set %l[%c0], %o : !util.object -> !util.list<?>
    return %o, %l : !util.object, !util.list<?>
  }
  func.func @narrow_scalars(%a: i1, %b: i8, %c: i16, %d: index) -> (i1, i8, i16, index) {
    return %a, %b, %c, %d : i1, i8, i16, index
  }
}
"#;

fn builder() -> SessionBuilder {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    let bytes = BYTES.get_or_init(|| compile(PROGRAM, &CompileOptions::default()));
    Session::builder(&device("local-sync")).module(module(bytes))
}

fn session() -> Session {
    builder().build().unwrap()
}

fn call(session: &mut Session, name: &str, arguments: Vec<Value>) -> iree_rt::Result<Value> {
    let function = session.function(name)?;
    session.call(&function, arguments)?.get(0)
}

fn ints(value: Value) -> Vec<i32> {
    let Value::List(values) = value else { panic!("{value:?}") };
    let int = |value| if let Value::I32(int) = value { int } else { panic!("{value:?}") };
    values.into_iter().map(int).collect()
}

#[test]
fn lists_hold_everything() {
    let mut session = session();
    let view = session.device().buffer_view(&[2], &[1f32, 2.]).unwrap();
    let nested = (0..60).fold(Value::from(5), |inner, _| Value::List(vec![inner]));
    let values = vec![
        Value::I32(-1),
        Value::I64(i64::MAX),
        Value::F32(0.5),
        Value::F64(1e300),
        Value::from(&view),
        Value::from(view.buffer()),
        Value::Bytes(vec![]),
        Value::Bytes(vec![0, 255]),
        Reference::new(7u8).unwrap().into(),
        Value::Null,
        Value::List(vec![]),
        nested,
    ];
    let out = call(&mut session, "lists.same", vec![values.into()]).unwrap();
    let Value::List(out) = out else { panic!("{out:?}") };
    let [
        Value::I32(-1),
        Value::I64(i64::MAX),
        Value::F32(0.5),
        Value::F64(1e300),
        Value::BufferView(same),
        Value::Buffer(buffer),
        Value::Bytes(empty),
        Value::Bytes(bytes),
        Value::Reference(reference),
        Value::Null,
        Value::List(none),
        Value::List(nested),
    ] = &out[..]
    else {
        panic!("{out:?}")
    };
    assert_eq!(same.read::<f32>().unwrap(), [1., 2.]);
    assert_eq!(buffer.byte_len(), 8);
    assert_eq!((&empty[..], &bytes[..]), (&[][..], &[0, 255][..]));
    assert_eq!(reference.downcast_ref::<u8>(), Some(&7));
    assert!(none.is_empty());
    let mut inner = &nested[0];
    for _ in 0..59 {
        let Value::List(values) = inner else { panic!("{inner:?}") };
        inner = &values[0];
    }
    assert!(matches!(inner, Value::I32(5)), "{inner:?}");
    // A list keeps what its buffers need.
    drop(session);
    assert_eq!(same.read::<f32>().unwrap(), [1., 2.]);
}

#[test]
fn typed_lists_bytes_and_text() {
    let mut session = session();
    let first = session.typed::<(Vec<i32>,), (Vec<i32>, i32, i64)>("lists.first").unwrap();
    let out = first.call(&mut session, (vec![7, 8, 9],)).unwrap();
    assert_eq!(out, (vec![7], 7, 3));
    let narrow = session.typed::<(i32,), Vec<i32>>("lists.narrow").unwrap();
    assert_eq!(narrow.call(&mut session, (-3,)).unwrap(), [-3]);
    let bytes = session.typed::<(Vec<u8>,), (Vec<u8>, i64)>("lists.bytes").unwrap();
    assert_eq!(bytes.call(&mut session, (vec![1, 2, 3],)).unwrap(), (vec![1, 2, 3], 3));
    assert_eq!(bytes.call(&mut session, (vec![],)).unwrap(), (vec![], 0));
    let text = session.typed::<(String,), (String, i64)>("lists.bytes").unwrap();
    assert_eq!(text.call(&mut session, ("ä".into(),)).unwrap(), ("ä".into(), 2));
    let from_bytes = session.typed::<(Vec<u8>,), (String, i64)>("lists.bytes").unwrap();
    let error = from_bytes.call(&mut session, (vec![0xFF],)).unwrap_err();
    assert!(error.message().contains("text"), "{error}");
    type Lists = Vec<Vec<i64>>;
    let same = session.typed::<(Lists,), Lists>("lists.same").unwrap();
    assert_eq!(same.call(&mut session, (vec![vec![1], vec![]],)).unwrap(), [vec![1], vec![]]);
    let mixed = session.typed::<(Vec<Value>,), Lists>("lists.same").unwrap();
    let error = mixed.call(&mut session, (vec![Value::List(vec![Value::F32(1.5)])],)).unwrap_err();
    assert!(error.message().contains("entry 0: entry 0: an f32 where i64"), "{error}");
}

#[test]
fn types_are_reflected_and_checked_at_lookup() {
    let session = session();
    let scalar = |scalar| Some(Box::new(ValueType::Scalar(scalar)));
    let first = session.function("lists.first").unwrap();
    assert_eq!(first.arguments(), [ValueType::List(scalar(ScalarType::I32))]);
    let same = session.function("lists.same").unwrap();
    assert_eq!(same.arguments(), [ValueType::List(None)]);
    assert_eq!(session.function("lists.bytes").unwrap().arguments(), [ValueType::Bytes]);

    let error = session.typed::<(Vec<f32>,), (Vec<i32>, i32, i64)>("lists.first").unwrap_err();
    assert!(error.message().contains("argument 0: entries: i32 is not f32"), "{error}");
    assert!(session.typed::<(Vec<u8>,), Vec<u8>>("lists.same").is_err());
    assert!(session.typed::<(Tensor<f32>,), Vec<Value>>("lists.same").is_err());
    assert!(session.typed::<(Reference,), (Reference, Vec<Value>)>("lists.object").is_ok());
}

#[test]
fn wrong_types_are_errors_that_name_them() {
    let mut session = session();
    let view = session.device().buffer_view(&[2], &[1f32, 2.]).unwrap();
    let foreign = device("local-sync").buffer_view(&[2], &[1f32, 2.]).unwrap();
    let deep = (0..200).fold(Value::Null, |inner, _| Value::List(vec![inner]));
    let cases: [(&str, Value, &str); 9] = [
        ("lists.same", 1.into(), "an i32 where !util.list<?>"),
        ("lists.same", view.into(), "a tensor where !util.list<?>"),
        ("lists.same", Value::Null, "a null reference where !util.list<?>"),
        ("lists.same", "text".into(), "bytes where !util.list<?>"),
        ("lists.bytes", Value::List(vec![]), "a list where !util.buffer"),
        ("lists.first", Value::List(vec![1.into(), 1i64.into()]), "entry 1: an i64 where i32"),
        ("lists.same", deep, "nested"),
        ("lists.same", vec![Value::List(vec![foreign.into()])].into(), "another device"),
        ("lists.object", 1.into(), "an i32 where !util.object"),
    ];
    for (name, argument, expected) in cases {
        let error = call(&mut session, name, vec![argument]).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{error}");
        assert!(error.message().contains(expected), "{error} should contain {expected}");
    }
    // What only the program can tell.
    let error = call(&mut session, "lists.first", vec![Value::List(vec![])]).unwrap_err();
    assert_eq!(error.code(), Code::OutOfRange, "{error}");
    assert!(call(&mut session, "lists.same", vec![Value::List(vec![])]).is_ok());
}

#[test]
fn lists_are_passed_by_value() {
    let mut session = session();
    let append = session.function("lists.append").unwrap();
    let mut prepared = session.prepare(&append).unwrap();
    prepared.set(0, Value::List(vec![1.into()])).unwrap();
    for x in [2, 3] {
        // The program changes its copy, and gets a new one the next time.
        prepared.set(1, x).unwrap();
        prepared.invoke(&mut session).unwrap();
        assert_eq!(ints(prepared.outputs().get(0).unwrap()), [1, x]);
    }
    // A result that the program keeps and changes stays as it was returned.
    let keep = session.function("lists.keep").unwrap();
    let kept = session.call(&keep, [Value::List(vec![1.into()])]).unwrap();
    assert_eq!(ints(call(&mut session, "lists.change", vec![9.into()]).unwrap()), [9]);
    assert_eq!(ints(kept.get(0).unwrap()), [1]);
    assert_eq!(ints(call(&mut session, "lists.change", vec![8.into()]).unwrap()), [8]);
}

/// Not what the program made of its own the last time.
#[test]
fn validators_see_lists_as_they_are_passed() {
    let refuse_long = |arguments: &[Value]| match &arguments[0] {
        Value::List(list) if list.len() == 1 => Ok(()),
        _ => Err(Error::new(Code::OutOfRange, "too long")),
    };
    let mut session = builder().validate("lists.append", refuse_long).build().unwrap();
    let append = session.function("lists.append").unwrap();
    let mut prepared = session.prepare(&append).unwrap();
    prepared.set(0, Value::List(vec![1.into()])).unwrap();
    for x in [2, 3] {
        prepared.set(1, x).unwrap();
        prepared.invoke(&mut session).unwrap();
        assert_eq!(ints(prepared.outputs().get(0).unwrap()), [1, x]);
    }
    prepared.set(0, Value::List(vec![1.into(), 2.into()])).unwrap();
    let error = prepared.invoke(&mut session).unwrap_err();
    assert_eq!(error.code(), Code::OutOfRange, "{error}");
}

#[test]
fn a_list_without_end_is_an_error() {
    let mut session = session();
    let error = call(&mut session, "lists.endless", vec![]).unwrap_err();
    assert!(error.message().contains("contains itself"), "{error}");
}

/// What could not be copied would still be the program's to change, on another thread too.
#[test]
fn a_call_that_fails_leaves_no_results() {
    let mut session = session();
    let keep = session.function("lists.keep_and_fail").unwrap();
    let mut prepared = session.prepare(&keep).unwrap();
    prepared.set(0, Value::List(vec![1.into()])).unwrap();
    let error = prepared.invoke(&mut session).unwrap_err();
    assert!(error.message().contains("contains itself"), "{error}");
    assert!(prepared.outputs().is_empty(), "{:?}", prepared.outputs());
}

#[test]
fn references_pass_through() {
    let mut session = session();
    let object = session.typed::<(Reference,), (Reference, Vec<Reference>)>("lists.object");
    let words = Reference::new(vec!["a", "b"]).unwrap();
    let (same, list) = object.unwrap().call(&mut session, (words,)).unwrap();
    for reference in [same, list[0].clone()] {
        assert_eq!(reference.downcast_ref::<Vec<&str>>().unwrap(), &["a", "b"]);
    }
    // Null is a reference to nothing.
    let object = session.function("lists.object").unwrap();
    let out = session.call(&object, [Value::Null]).unwrap();
    assert!(matches!(out.get(0).unwrap(), Value::Null));
    assert!(format!("{out:?}").contains("List([Null])"), "{out:?}");
}

#[test]
fn narrow_scalars_are_32_bits_wide() {
    let mut session = session();
    type Scalars = (i32, i32, i32, i64);
    let same = session.typed::<Scalars, Scalars>("lists.narrow_scalars").unwrap();
    assert_eq!(
        same.call(&mut session, (1, -128, 32767, 1 << 40)).unwrap(),
        (1, -128, 32767, 1 << 40)
    );
}

//! Sessions, functions and calls.

use std::thread;

use crate::support::{BOTH_CPU_DEVICES, device, kinds, module, session};
use iree_rt::{
    Arguments, BufferView, Call, Code, CompileOptions, Module, Outputs, Results, ScalarType,
    Session, Tensor, Value, ValueType, bf16,
};

fn floats(session: &Session, data: &[f32]) -> Value {
    session.device().buffer_view(&[data.len()], data).unwrap().into()
}

#[test]
fn untyped_calls_on_both_cpu_devices() {
    for uri in BOTH_CPU_DEVICES {
        let mut session = session(uri);
        let add = session.function("kinds.add").unwrap();
        let (a, b) = (floats(&session, &[1., 2., 3., 4.]), floats(&session, &[10., 20., 30., 40.]));
        let out = session.call(&add, [a, b]).unwrap();
        assert_eq!(out.len(), 1);
        let sum = out.view(0).unwrap();
        assert_eq!(sum.shape(), [4]);
        assert_eq!(sum.read::<f32>().unwrap(), [11., 22., 33., 44.]);
        assert_eq!(out.get(1).unwrap_err().code(), Code::OutOfRange);
    }
}

#[test]
fn typed_calls_are_checked_at_lookup() {
    let mut session = session("local-sync");
    type F32 = Tensor<f32>;
    let add = session.typed::<(F32, F32), F32>("kinds.add").unwrap();
    let tensor = |data: &[f32]| F32::try_from(session.device().buffer_view(&[4], data).unwrap());
    let (a, b) = (tensor(&[1., 2., 3., 4.]).unwrap(), tensor(&[10., 20., 30., 40.]).unwrap());
    let sum = add.call(&mut session, (a, b)).unwrap();
    assert_eq!(sum.read().unwrap(), [11., 22., 33., 44.]);

    let both = session.typed::<(F32,), (F32, Tensor<bool>)>("kinds.both").unwrap();
    let x = session.device().buffer_view(&[2], &[1f32, -1.]).unwrap();
    let (negated, positive) = both.call(&mut session, (x.try_into().unwrap(),)).unwrap();
    assert_eq!(negated.read().unwrap(), [-1., 1.]);
    assert_eq!(positive.read().unwrap(), [true, false]);

    type All = (i32, i64, f32, f64);
    let scalars = session.typed::<All, All>("kinds.scalars").unwrap();
    let doubled = scalars.call(&mut session, (-3, 1 << 40, 0.5, 1e300)).unwrap();
    assert_eq!(doubled, (-6, 1 << 41, 1.0, 2e300));

    let wrong_type = session.typed::<(F32, Tensor<i32>), F32>("kinds.add").unwrap_err();
    assert_eq!(wrong_type.code(), Code::InvalidArgument);
    assert!(wrong_type.message().contains("argument 1"), "{wrong_type}");
    let wrong_count = session.typed::<(F32,), F32>("kinds.add").unwrap_err();
    assert!(wrong_count.message().contains("2 arguments, not 1"), "{wrong_count}");
    let wrong_result = session.typed::<(F32, F32), f32>("kinds.add").unwrap_err();
    assert!(wrong_result.message().contains("result 0"), "{wrong_result}");
    assert!(session.typed::<(i64, i64, f32, f64), All>("kinds.scalars").is_err());
}

/// Twelve arguments in, twelve results out, in another order.
fn many() -> Session {
    let list = |what: &str| (0..12).map(|at| format!("{what}{at}")).collect::<Vec<_>>().join(", ");
    let source = format!(
        "module @many {{ func.func @turn({}) -> ({}) {{ return %a11, {} : {} }} }}",
        list("%a").replace(',', ": i32,") + ": i32",
        ["i32"; 12].join(", "),
        list("%a").replace(", %a11", ""),
        ["i32"; 12].join(", "),
    );
    let bytes = crate::support::compile(&source, &CompileOptions::default());
    Session::builder(&device("local-sync")).module(module(&bytes)).build().unwrap()
}

#[test]
fn typed_calls_of_many_arguments() {
    let mut session = many();
    const TURNED: [i32; 12] = [11, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10];
    let given: [i32; 12] = std::array::from_fn(|at| at as i32);

    type Twelve = (i32, i32, i32, i32, i32, i32, i32, i32, i32, i32, i32, i32);
    let tuple = session.typed::<Twelve, Twelve>("many.turn").unwrap();
    let turned = tuple.call(&mut session, (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)).unwrap();
    assert_eq!((turned.0, turned.1, turned.11), (11, 0, 10));
    let array = session.typed::<[i32; 12], [i32; 12]>("many.turn").unwrap();
    assert_eq!(array.call(&mut session, given).unwrap(), TURNED);
    let slice = session.typed::<&[i32], [i32; 12]>("many.turn").unwrap();
    assert_eq!(slice.call(&mut session, &given).unwrap(), TURNED);
    let error = slice.call(&mut session, &given[..11]).unwrap_err();
    assert!(error.message().contains("12 arguments, not 11"), "{error}");
    let vec = session.typed::<Vec<i32>, [i32; 12]>("many.turn").unwrap();
    assert_eq!(vec.call(&mut session, given.to_vec()).unwrap(), TURNED);

    let error = session.typed::<[i32; 11], [i32; 12]>("many.turn").unwrap_err();
    assert!(error.message().contains("12 arguments, not 11"), "{error}");
    let error = session.typed::<Vec<f32>, [i32; 12]>("many.turn").unwrap_err();
    assert!(error.message().contains("argument 0: i32 is not f32"), "{error}");
    let error = session.typed::<Vec<i32>, [f32; 12]>("many.turn").unwrap_err();
    assert!(error.message().contains("result 0: i32 is not f32"), "{error}");
}

/// A struct with names for them.
struct Turn {
    first: [i32; 10],
    last: (i32, i32),
}

impl Arguments for Turn {
    fn check(types: &[ValueType]) -> iree_rt::Result<()> {
        <[i32; 12] as Arguments>::check(types)
    }

    fn set(self, call: &mut Call) -> iree_rt::Result<()> {
        for (at, value) in self.first.into_iter().chain([self.last.0, self.last.1]).enumerate() {
            call.set(at, value)?;
        }
        Ok(())
    }
}

struct Ends {
    first: i32,
    last: i32,
}

impl Results for Ends {
    fn check(types: &[ValueType]) -> iree_rt::Result<()> {
        <[i32; 12] as Results>::check(types)
    }

    fn take(outputs: &Outputs) -> iree_rt::Result<Self> {
        let all = <[i32; 12]>::take(outputs)?;
        Ok(Self { first: all[0], last: all[11] })
    }
}

#[test]
fn typed_calls_of_structs() {
    let mut session = many();
    let turn = session.typed::<Turn, Ends>("many.turn").unwrap();
    let arguments = Turn { first: [0; 10], last: (7, 9) };
    let Ends { first, last } = turn.call(&mut session, arguments).unwrap();
    assert_eq!((first, last), (9, 7));
}

#[test]
fn arguments_are_arrays_slices_and_tuples() {
    let mut session = session("local-sync");
    let add = session.function("kinds.add").unwrap();
    let views = [1f32, 2.].map(|x| session.device().buffer_view(&[4], &[x; 4]).unwrap());
    let [a, b] = &views;
    let tensor = Tensor::<f32>::try_from(b.clone()).unwrap();
    let value = Value::from(a);
    let outs = [
        session.call(&add, [a, b]),
        session.call(&add, &views),
        session.call(&add, &views[..]),
        session.call(&add, vec![a, b]),
        session.call(&add, (a, &tensor)),
        session.call(&add, (&value, b)),
        session.call(&add, views.clone()),
    ];
    for out in outs {
        let sum = out.unwrap().view(0).unwrap();
        assert_eq!(sum.read::<f32>().unwrap(), [3.; 4]);
    }
    for error in [session.call(&add, [a]), session.call(&add, ()), session.call(&add, (a, b, a))] {
        let error = error.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{error}");
        assert!(error.message().contains("takes 2 arguments, not "), "{error}");
    }
}

/// By its number, and by its name where the program has one for it.
#[test]
fn errors_name_the_argument() {
    let source = "module @named {
      func.func @first(%a: tensor<2xf32> {iree.abi.name = \"image\"}, %b: tensor<2xf32>)
          -> (tensor<2xf32> {iree.abi.name = \"sum\"}) {
        %0 = stablehlo.add %a, %b : tensor<2xf32>
        return %0 : tensor<2xf32>
      }
    }";
    let bytes = crate::support::compile(source, &CompileOptions::default());
    let mut session =
        Session::builder(&device("local-sync")).module(module(&bytes)).build().unwrap();
    let first = session.function("named.first").unwrap();
    let (good, long) = (floats(&session, &[0.; 2]), floats(&session, &[0.; 3]));
    let error = session.call(&first, [&long, &good]).unwrap_err();
    assert!(error.message().starts_with("argument 0 (`image`) of `named.first`: a "), "{error}");
    let error = session.call(&first, [&good, &long]).unwrap_err();
    assert!(error.message().starts_with("argument 1 of `named.first`: a "), "{error}");
    let mut call = session.prepare(&first).unwrap();
    let error = call.invoke(&mut session).unwrap_err();
    assert_eq!(error.message(), "argument 0 (`image`) of `named.first` was not set");
    let error = call.set_named("picture", good.clone()).unwrap_err();
    assert_eq!(error.code(), Code::NotFound);
    assert_eq!(error.message(), "`named.first` has no argument `picture`: it has `image`");
    call.set_named("image", good.clone()).unwrap();
    call.set(1, good).unwrap();
    call.invoke(&mut session).unwrap();
    let outputs = call.outputs();
    assert_eq!(outputs.view_named("sum").unwrap().read::<f32>().unwrap(), [0.; 2]);
    let error = outputs.get_named("total").unwrap_err();
    assert_eq!(error.code(), Code::NotFound);
    assert_eq!(error.message(), "`named.first` has no result `total`: it has `sum`");
    let shown = "named.first(image: tensor<2xf32>, tensor<2xf32>) -> (sum: tensor<2xf32>)";
    assert_eq!(format!("{first:?}"), shown);
}

#[test]
fn reflection_tells_types() {
    let session = session("local-sync");
    let tensor = |shape: &[Option<usize>], name| ValueType::Tensor {
        shape: shape.to_vec(),
        element_type: iree_rt::ElementType::parse(name).unwrap(),
    };
    let both = session.function("kinds.both").unwrap();
    assert_eq!(both.name(), "kinds.both");
    assert_eq!(both.arguments(), [tensor(&[Some(2)], "f32")]);
    assert_eq!(both.results(), [tensor(&[Some(2)], "f32"), tensor(&[Some(2)], "i1")]);
    let any = session.function("kinds.double_any").unwrap();
    assert_eq!(any.arguments(), [tensor(&[None, Some(2)], "f32")]);
    let unsigned = session.function("kinds.double_u32").unwrap();
    assert_eq!(unsigned.arguments(), [tensor(&[Some(3)], "i32")]);
    let step = session.function("kinds.step").unwrap();
    assert_eq!(step.arguments(), [ValueType::Scalar(ScalarType::I32)]);
    assert!(step.declaration().contains("@step"), "{}", step.declaration());

    let names: Vec<String> =
        session.modules()[0].functions().unwrap().into_iter().map(|f| f.name).collect();
    assert!(names.iter().any(|name| name == "scalars"), "{names:?}");
    assert!(names.iter().all(|name| !name.starts_with("__")), "{names:?}");
}

#[test]
fn other_element_types_go_through_compiled_code() {
    let mut session = session("local-task");
    let device = session.device().clone();

    let not = session.function("kinds.not").unwrap();
    let x = device.buffer_view(&[3], &[true, false, true]).unwrap();
    let out = session.call(&not, [x]).unwrap();
    assert_eq!(out.view(0).unwrap().read::<bool>().unwrap(), [false, true, false]);

    let double = session.function("kinds.double_bf16").unwrap();
    let x = [0.5, -2.0, 3.0].map(bf16::from_f32);
    let x = device.buffer_view(&[3], &x).unwrap();
    let out = session.call(&double, [x]).unwrap();
    let doubled = out.view(0).unwrap().read::<bf16>().unwrap();
    assert_eq!(doubled, [1.0, -4.0, 6.0].map(bf16::from_f32));

    let double = session.function("kinds.double_u32").unwrap();
    let x = device.buffer_view(&[3], &[1u32, 0x8000_0000, u32::MAX]).unwrap();
    let out = session.call(&double, [x]).unwrap();
    assert_eq!(out.view(0).unwrap().read::<u32>().unwrap(), [2, 0, u32::MAX - 1]);
}

#[test]
fn dynamic_shapes() {
    let mut session = session("local-task");
    let double = session.function("kinds.double_any").unwrap();
    for rows in [1, 3, 100] {
        let data: Vec<f32> = (0..rows * 2).map(|i| i as f32).collect();
        let x = session.device().buffer_view(&[rows, 2], &data).unwrap();
        let out = session.call(&double, [x]).unwrap().view(0).unwrap();
        assert_eq!(out.shape(), [rows, 2]);
        let expected: Vec<f32> = data.iter().map(|x| x * 2.).collect();
        assert_eq!(out.read::<f32>().unwrap(), expected);
    }
    let x = session.device().buffer_view(&[2, 3], &[0f32; 6]).unwrap();
    let error = session.call(&double, [x]).unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    assert!(error.message().contains("tensor<?x2xf32>"), "{error}");
}

#[test]
fn a_prepared_call_keeps_its_arguments() {
    let mut session = session("local-task");
    let add = session.function("kinds.add").unwrap();
    let mut call = session.prepare(&add).unwrap();
    call.set(0, floats(&session, &[1.; 4])).unwrap();
    let unset = call.invoke(&mut session).unwrap_err();
    assert_eq!(unset.code(), Code::FailedPrecondition);
    assert!(unset.message().contains("argument 1"), "{unset}");
    assert_eq!(call.outputs().get(0).unwrap_err().code(), Code::OutOfRange);
    for step in 0..50 {
        call.set(1, floats(&session, &[step as f32; 4])).unwrap();
        call.invoke(&mut session).unwrap();
        let sum = call.outputs().view(0).unwrap();
        assert_eq!(sum.read::<f32>().unwrap(), [1. + step as f32; 4]);
    }
    // A result as the next argument.
    for _ in 0..3 {
        let last = call.outputs().get(0).unwrap();
        call.set(1, last).unwrap();
        call.invoke(&mut session).unwrap();
    }
    assert_eq!(call.outputs().view(0).unwrap().read::<f32>().unwrap(), [53.; 4]);
    call.clear_outputs().unwrap();
    assert!(call.outputs().get(0).is_err());
}

/// What is taken out may be written where it is, and has to be set again.
#[test]
fn an_argument_is_taken_out_and_written() {
    let mut session = session("local-task");
    let device = session.device().clone();
    let mut call = session.prepare(&session.function("kinds.add").unwrap()).unwrap();
    let error = call.take(1).unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
    assert_eq!(call.take(2).unwrap_err().code(), Code::OutOfRange);
    call.set(0, device.buffer_view(&[4], &[1f32; 4]).unwrap()).unwrap();
    call.set(1, device.buffer_view(&[4], &[0f32; 4]).unwrap()).unwrap();
    for step in 0..3 {
        let mut view = call.take(1).unwrap().into_buffer_view().unwrap();
        let error = call.invoke(&mut session).unwrap_err();
        assert!(error.message().contains("argument 1 of `kinds.add` was not set"), "{error}");
        view.write(0, &[step as f32; 4]).unwrap();
        call.set(1, view).unwrap();
        call.invoke(&mut session).unwrap();
        assert_eq!(call.outputs().view(0).unwrap().read::<f32>().unwrap(), [1. + step as f32; 4]);
    }
    // In any order, the first that is missing is named.
    let both = [call.take(0).unwrap(), call.take(1).unwrap()];
    assert!(format!("{call:?}").contains("2 arguments not set"), "{call:?}");
    let [first, second] = both;
    call.set(1, second).unwrap();
    let error = call.invoke(&mut session).unwrap_err();
    assert!(error.message().contains("argument 0 of"), "{error}");
    call.set(0, first).unwrap();
    call.invoke(&mut session).unwrap();
}

#[test]
fn a_prepared_call_takes_what_a_call_takes() {
    let mut session = session("local-sync");
    let mut call = session.prepare(&session.function("kinds.add").unwrap()).unwrap();
    let view = session.device().buffer_view(&[4], &[1f32; 4]).unwrap();
    let mut tensor = Tensor::new(session.device(), &[4], &[0f32; 4]).unwrap();
    tensor.write(1, &[1.; 3]).unwrap();
    assert_eq!((tensor.shape(), tensor.read().unwrap()), (&[4][..], vec![0., 1., 1., 1.]));
    tensor.write(0, &[1.]).unwrap();
    let value = Value::from(&view);
    call.set(0, &value).unwrap();
    call.set(1, &tensor).unwrap();
    call.set(0, value).unwrap();
    call.set(1, tensor).unwrap();
    call.set(0, &view).unwrap();
    call.invoke(&mut session).unwrap();
    assert_eq!(call.outputs().view(0).unwrap().read::<f32>().unwrap(), [2.; 4]);
}

#[test]
fn wrong_arguments_are_errors_that_name_them() {
    let mut session = session("local-task");
    let add = session.function("kinds.add").unwrap();
    let good = floats(&session, &[0.; 4]);
    let ints = session.device().buffer_view(&[4], &[0i32; 4]).unwrap();
    let long = floats(&session, &[0.; 5]);
    let square = session.device().buffer_view(&[2, 2], &[0f32; 4]).unwrap();
    let cases: [(Vec<Value>, &str); 7] = [
        (vec![good.clone()], "2 arguments, not 1"),
        (vec![good.clone(), good.clone(), good.clone()], "2 arguments, not 3"),
        (vec![good.clone(), ints.into()], "argument 1 of `kinds.add`: a BufferView(4xi32"),
        (vec![long, good.clone()], "argument 0 of `kinds.add`: a BufferView(5xf32"),
        (vec![good.clone(), square.into()], "2x2xf32"),
        (vec![good.clone(), 3.into()], "an i32 where tensor<4xf32>"),
        (vec![good.clone(), Value::Null], "a null reference"),
    ];
    for (arguments, expected) in cases {
        let error = session.call(&add, arguments).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{error}");
        assert!(error.message().contains(expected), "{error} should contain {expected}");
    }
    let scalars = session.function("kinds.scalars").unwrap();
    let error = session.call(&scalars, (1i64, 1i64, 1f32, 1f64));
    let error = error.unwrap_err();
    assert!(error.message().contains("argument 0") && error.message().contains("i32"), "{error}");
    // The session still works.
    assert!(session.call(&add, [good.clone(), good]).is_ok());
}

#[test]
fn an_unknown_function_lists_the_known_ones() {
    let session = session("local-sync");
    for name in ["kinds.subtract", "add", "", "nothing.add", "kinds."] {
        let error = session.function(name).unwrap_err();
        assert_eq!(error.code(), Code::NotFound, "{error}");
        assert!(error.message().contains("`kinds.add`"), "{error}");
    }
}

#[test]
fn functions_that_check_nothing_are_none_of_the_session() {
    let session = session("local-sync");
    for name in ["hal.executable.create", "hal.buffer.store", "kinds.__init", "kinds.__deinit"] {
        let error = session.function(name).unwrap_err();
        assert_eq!(error.code(), Code::NotFound, "{error}");
        let message = error.message();
        assert!(message.contains(name) && message.contains("`kinds.both`"), "{message}");
    }
    assert!(session.function("hal.buffer.store").unwrap_err().message().contains("IREE itself"));
}

#[test]
fn several_modules_in_one_session() {
    let other = module(&crate::support::compile(crate::support::OTHER, &CompileOptions::default()));
    let device = device("local-task");
    let mut session =
        Session::builder(&device).module(module(kinds())).module(other.clone()).build().unwrap();
    let add = session.function("kinds.add").unwrap();
    let negate = session.function("other.negate").unwrap();
    let one = floats(&session, &[1.; 4]);
    let two = session.call(&add, [one.clone(), one]).unwrap().get(0).unwrap();
    let minus_two = session.call(&negate, [two]).unwrap().view(0).unwrap();
    assert_eq!(minus_two.read::<f32>().unwrap(), [-2.; 4]);

    let twice = Session::builder(&device).module(other.clone()).module(other.clone()).build();
    let error = twice.unwrap_err();
    assert_eq!(error.code(), Code::AlreadyExists);
    assert!(error.message().contains("`other`"), "{error}");

    // One module in two sessions, and a function of one in the other.
    let mut only_other = Session::builder(&device).module(other).build().unwrap();
    let error = only_other.call(&negate, [floats(&session, &[1.; 4])]).unwrap_err();
    assert!(error.message().contains("another session"), "{error}");
    let mut call = session.prepare(&negate).unwrap();
    call.set(0, floats(&session, &[1.; 4])).unwrap();
    assert!(call.invoke(&mut only_other).is_err());
}

#[test]
fn sessions_have_their_own_state() {
    let device = device("local-task");
    let module = module(kinds());
    let mut first = Session::builder(&device).module(module.clone()).build().unwrap();
    let mut second = Session::builder(&device).module(module).build().unwrap();
    let count = |session: &mut Session, by: i32| {
        let step = session.typed::<(i32,), Tensor<i32>>("kinds.step").unwrap();
        step.call(session, (by,)).unwrap().read().unwrap()[0]
    };
    assert_eq!(count(&mut first, 5), 5);
    assert_eq!(count(&mut first, 5), 10);
    assert_eq!(count(&mut second, 1), 1);
    drop(first);
    // The device's topology lives on with the device, not with its first session.
    assert_eq!(count(&mut second, 1), 2);
}

#[test]
fn two_sessions_on_two_threads() {
    for uri in BOTH_CPU_DEVICES {
        let device = device(uri);
        let module = module(kinds());
        thread::scope(|scope| {
            for thread in 0..2 {
                let (device, module) = (&device, module.clone());
                scope.spawn(move || {
                    let mut session = Session::builder(device).module(module).build().unwrap();
                    let add = session.function("kinds.add").unwrap();
                    for i in 0..200 {
                        let x = floats(&session, &[(thread * 1000 + i) as f32; 4]);
                        let out = session.call(&add, [x.clone(), x]).unwrap();
                        let sum = out.view(0).unwrap().read::<f32>().unwrap();
                        assert_eq!(sum, [(thread * 1000 + i) as f32 * 2.; 4]);
                    }
                });
            }
        });
    }
}

#[test]
fn a_session_moves_between_threads() {
    let mut session = session("local-task");
    let add = session.function("kinds.add").unwrap();
    let mut call = session.prepare(&add).unwrap();
    let one = floats(&session, &[1.; 4]);
    call.set(0, one.clone()).unwrap();
    call.set(1, one).unwrap();
    let (call, session) = thread::spawn(move || {
        call.invoke(&mut session).unwrap();
        (call, session)
    })
    .join()
    .unwrap();
    assert_eq!(call.outputs().view(0).unwrap().read::<f32>().unwrap(), [2.; 4]);
    drop(session);
    assert_eq!(call.outputs().view(0).unwrap().read::<f32>().unwrap(), [2.; 4]);
}

#[test]
fn everything_outlives_the_handles_it_was_made_from() {
    for uri in BOTH_CPU_DEVICES {
        let result: BufferView = {
            let mut session = {
                let device = device(uri);
                let module: Module = module(kinds());
                Session::builder(&device).module(module).build().unwrap()
            };
            let add = session.function("kinds.add").unwrap();
            let out = {
                let x = floats(&session, &[2.; 4]);
                session.call(&add, [x.clone(), x]).unwrap()
            };
            drop(session);
            drop(add);
            out.view(0).unwrap()
        };
        let buffer = result.buffer();
        drop(result);
        let mut bytes = [0; 16];
        buffer.read_into(0, &mut bytes).unwrap();
        assert_eq!(bytemuck::cast::<_, [f32; 4]>(bytes), [4.; 4]);
    }
}

#[test]
fn a_tensor_of_another_device_is_refused() {
    // Two handles of one URI are two devices, each with its own memory.
    let (mut session, other) = (session("local-sync"), device("local-sync"));
    let add = session.function("kinds.add").unwrap();
    let here = session.device().buffer_view(&[4], &[1f32; 4]).unwrap();
    let there = other.buffer_view(&[4], &[1f32; 4]).unwrap();
    let error = session.call(&add, (here, there)).unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument, "{error}");
    assert!(error.message().contains("another device"), "{error}");
}

#[test]
fn an_error_of_iree_says_what_was_wrong_and_where() {
    // The program takes any tensor, and asks for two floats itself.
    let source = "module @picky {
      func.func @double(%any: !hal.buffer_view) -> tensor<2xf32> {
        %two = hal.tensor.import %any : !hal.buffer_view -> tensor<2xf32>
        %0 = stablehlo.add %two, %two : tensor<2xf32>
        return %0 : tensor<2xf32>
      }
    }";
    let bytes = crate::support::compile(source, &CompileOptions::default());
    let device = device("local-task");
    let mut session = Session::builder(&device).module(module(&bytes)).build().unwrap();
    let double = session.function("picky.double").unwrap();
    let three = device.buffer_view(&[3], &[1f32, 2., 3.]).unwrap();
    let error = session.call(&double, [three]).unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument, "{error}");
    // What IREE says, where in its source, which function of it that was, and who called it.
    for part in ["expected 2", ".c:", "hal.buffer_view.assert", "bytecode picky"] {
        assert!(error.message().contains(part), "no {part} in {error}");
    }
}

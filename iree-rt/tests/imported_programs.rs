//! Programs as IREE's importers of ONNX and PyTorch make them: without reflection, and with both forms
//! of every function.

mod support;

use std::sync::OnceLock;

use iree_rt::{
    BufferView, Code, CompileOptions, Device, Fence, Module, Session, Tensor, Value, ValueType,
};
use support::{compile, device, module};

/// What `iree-import-onnx` writes for a model of one node.
const ONNX: &str = r#"
module {
  func.func @main_graph(%arg0: !torch.vtensor<[?,3],f32>, %arg1: !torch.vtensor<[2,3],f32>)
      -> (!torch.vtensor<[2,3],f32>, !torch.vtensor<[?,3],f32>)
      attributes {torch.onnx_meta.ir_version = 9 : si64, torch.onnx_meta.opset_version = 17 : si64,
                  torch.onnx_meta.producer_name = "", torch.onnx_meta.producer_version = ""} {
    %0 = torch.operator "onnx.Relu"(%arg1)
        : (!torch.vtensor<[2,3],f32>) -> !torch.vtensor<[2,3],f32>
    %1 = torch.operator "onnx.Neg"(%arg0)
        : (!torch.vtensor<[?,3],f32>) -> !torch.vtensor<[?,3],f32>
    return %0, %1 : !torch.vtensor<[2,3],f32>, !torch.vtensor<[?,3],f32>
  }
}"#;

fn onnx() -> Module {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    let options = CompileOptions::default().flag("--iree-input-type=onnx");
    module(BYTES.get_or_init(|| compile(ONNX, &options)))
}

fn session(device: &Device) -> Session {
    Session::builder(device).module(onnx()).build().unwrap()
}

fn arguments(device: &Device) -> [BufferView; 2] {
    let one = device.buffer_view(&[1, 3], &[1f32, 2., 3.]).unwrap();
    [one, device.buffer_view(&[2, 3], &[-1f32, 2., -3., 4., -5., 6.]).unwrap()]
}

type F32 = Tensor<f32>;

const RELU: [f32; 6] = [0., 2., 0., 4., 0., 6.];

#[test]
fn typed_calls_take_references_for_tensors() {
    let device = device("local-task");
    let mut session = session(&device);
    let [a, b] = arguments(&device);
    let run = session.typed::<(&BufferView, F32), (F32, F32)>("module.main_graph").unwrap();
    let (relu, negated) = run.call(&mut session, (&a, b.clone().try_into().unwrap())).unwrap();
    assert_eq!(relu.read().unwrap(), RELU);
    assert_eq!(negated.read().unwrap(), [-1., -2., -3.]);
    let run = session.typed::<[&BufferView; 2], [BufferView; 2]>("module.main_graph").unwrap();
    let [relu, negated] = run.call(&mut session, [&a, &b]).unwrap();
    assert_eq!((relu.shape(), negated.shape()), (&[2, 3][..], &[1, 3][..]));

    // The number of them is known, and what is passed by value.
    assert!(session.typed::<(F32,), (F32, F32)>("module.main_graph").is_err());
    assert!(session.typed::<(F32, i32), (F32, F32)>("module.main_graph").is_err());
}

#[test]
fn results_are_checked_by_the_call() {
    let device = device("local-task");
    let mut session = session(&device);
    let [a, b] = arguments(&device);
    type Wrong = (F32, Tensor<i32>);
    let run = session.typed::<[&BufferView; 2], Wrong>("module.main_graph").unwrap();
    let error = run.call(&mut session, [&a, &b]).unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument, "{error}");
    for part in ["result 1 of `module.main_graph`", "1x3xf32", "i32"] {
        assert!(error.message().contains(part), "no {part} in {error}");
    }
    let run = session.typed::<[&BufferView; 2], [Vec<i32>; 2]>("module.main_graph").unwrap();
    let error = run.call(&mut session, [&a, &b]).unwrap_err();
    assert!(error.message().contains("result 0 of `module.main_graph`"), "{error}");
    assert!(error.message().contains("a tensor where a list belongs"), "{error}");
}

#[test]
fn what_the_program_refuses_shows_the_arguments() {
    let device = device("local-task");
    let mut session = session(&device);
    let [a, _] = arguments(&device);
    let wide = device.buffer_view(&[2, 5], &[0f32; 10]).unwrap();
    let run = session.function("module.main_graph").unwrap();
    let error = session.call(&run, [&a, &wide]).unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument, "{error}");
    for part in
        ["calling `module.main_graph` with argument 0: ", "1x3xf32", "argument 1: ", "2x5xf32"]
    {
        assert!(error.message().contains(part), "no {part} in {error}");
    }
    let error = session.call(&run, (&a, 3)).unwrap_err();
    assert!(error.message().contains("argument 1 of `module.main_graph`: an i32"), "{error}");
    // A reference to something else is for the program to find out.
    let error = session.call(&run, (&a, "text")).unwrap_err();
    assert!(error.message().contains("argument 1: bytes"), "{error}");
}

#[test]
fn both_forms_are_one_function() {
    let module = onnx();
    let [only] = &module.functions().unwrap()[..] else { panic!("one function") };
    assert_eq!((only.name.as_str(), only.coarse_fences), ("main_graph", true));
    assert_eq!(only.to_string(), "main_graph(ref, ref) -> (ref, ref)");

    for uri in ["local-task", "local-sync"] {
        let device = device(uri);
        let mut session = session(&device);
        let error = session.function("module.main").unwrap_err();
        assert!(error.message().ends_with("this session has `module.main_graph`"), "{error}");

        let run = session.function("module.main_graph").unwrap();
        assert_eq!(run.arguments(), [ValueType::Reference(None), ValueType::Reference(None)]);
        let arguments = arguments(&device);
        // Called, prepared, and in flight, in turn and more than once.
        let mut call = session.prepare(&run).unwrap();
        call.set(0, &arguments[0]).unwrap();
        call.set(1, &arguments[1]).unwrap();
        for _ in 0..3 {
            let out = session.call(&run, &arguments).unwrap();
            assert_eq!(out.view(0).unwrap().read::<f32>().unwrap(), RELU);
            call.invoke(&mut session).unwrap();
            assert_eq!(call.outputs().view(0).unwrap().read::<f32>().unwrap(), RELU);
            let pending = call.invoke_async(&mut session, None).unwrap();
            let out = pollster::block_on(pending).unwrap();
            assert_eq!(out.view(0).unwrap().read::<f32>().unwrap(), RELU);
        }
    }

    let device = device("local-task");
    let mut session = session(&device);
    let run = session.typed::<[BufferView; 2], (F32, F32)>("module.main_graph").unwrap();
    let (go, ready) = Fence::new(&device).unwrap();
    let pending = run.call_async(&mut session, arguments(&device), Some(&ready)).unwrap();
    assert!(!pending.fence().is_reached().unwrap(), "it waits for the fence");
    go.signal().unwrap();
    assert_eq!(pollster::block_on(pending).unwrap().0.read().unwrap(), RELU);
}

/// The importer keeps what is added to the function that it wrote.
#[test]
fn imported_programs_may_say_which_extents_are_equal() {
    let said = ONNX.replace("[2,3]", "[?,3]").replace(
        "torch.onnx_meta.ir",
        "iree.reflection = {\"iree_rt.shapes\" = \"n,3;n,3\"}, torch.onnx_meta.ir",
    );
    let options = CompileOptions::default().flag("--iree-input-type=onnx");
    let device = device("local-task");
    let module = module(&compile(&said, &options));
    let mut session = Session::builder(&device).module(module).build().unwrap();
    let [one, two] = arguments(&device);
    for name in ["module.main_graph", "module.main_graph$async"] {
        let run = session.function(name).unwrap();
        let unequal = "dimension 0 of argument 1 is 2, and dimension 0 of argument 0 is 1";
        let error = session.call(&run, [&one, &two]).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{error}");
        assert!(error.message().contains(unequal), "{error}");
        let error = session.call_async(&run, [&one, &two], None).unwrap_err();
        assert!(error.message().contains(unequal), "{error}");
        let wide = device.buffer_view(&[2, 4], &[0f32; 8]).unwrap();
        let error = session.call(&run, [&wide, &two]).unwrap_err();
        assert!(error.message().contains("dimension 1 of argument 0 is 4, not 3"), "{error}");
        assert!(session.call(&run, [&two, &two]).is_ok());
    }
}

/// A validator of a function is one of both forms.
#[test]
fn validators_are_of_both_forms() {
    let device = device("local-task");
    let mut session = Session::builder(&device)
        .module(onnx())
        .validate("module.main_graph", |arguments| match &arguments[0] {
            Value::BufferView(a) if a.shape()[0] < 3 => Ok(()),
            other => Err(iree_rt::Error::new(Code::OutOfRange, format!("too many in {other:?}"))),
        })
        .build()
        .unwrap();
    let [_, b] = arguments(&device);
    let many = device.buffer_view(&[3, 3], &[0f32; 9]).unwrap();
    for name in ["module.main_graph", "module.main_graph$async"] {
        let run = session.function(name).unwrap();
        let error = session.call(&run, [&many, &b]).unwrap_err();
        assert_eq!(error.code(), Code::OutOfRange, "{error}");
        let error = session.call_async(&run, [&many, &b], None).unwrap_err();
        assert_eq!(error.code(), Code::OutOfRange, "{error}");
    }
}

//! Rust functions that compiled code calls.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use iree_rt::{
    Code, CompileOptions, Device, DeviceOptions, Error, Instance, Kernel, KernelArguments, Kernels,
    Result, Session,
};
use support::{compile, module};

const DEVICES: [&str; 2] = ["local-task", "local-sync"];

/// Elements of the tensors, and of the part of one workgroup.
const LENGTH: usize = 64;
const PART: usize = 8;

/// `@main(x, y)`: calls kernel `name` for each of 8 parts of `x`, `y` and the result, with the
/// scalars 8 and -3.
fn graph(name: &str) -> String {
    format!(
        r#"
module @graph {{
  util.func public @main(%xv: !hal.buffer_view, %yv: !hal.buffer_view) -> !hal.buffer_view
      attributes {{iree.abi.stub}} {{
    %x = hal.tensor.import %xv : !hal.buffer_view -> tensor<64xf32>
    %y = hal.tensor.import %yv : !hal.buffer_view -> tensor<64xf32>
    %z = flow.dispatch.region -> (tensor<64xf32>) {{
      %empty = tensor.empty() : tensor<64xf32>
      %id = flow.dispatch.workgroup.id[0] : index
      %at = affine.apply affine_map<()[s0] -> (s0 * 8)>()[%id]
      %length = arith.constant 8 : index
      %factor = arith.constant -3 : i64
      %xs = tensor.extract_slice %x[%at] [8] [1] : tensor<64xf32> to tensor<8xf32>
      %ys = tensor.extract_slice %y[%at] [8] [1] : tensor<64xf32> to tensor<8xf32>
      %zs = tensor.extract_slice %empty[%at] [8] [1] : tensor<64xf32> to tensor<8xf32>
      %r = iree_codegen.ukernel.generic "{name}"
          ins(%xs, %ys : tensor<8xf32>, tensor<8xf32>) outs(%zs : tensor<8xf32>)
          (%length, %factor : index, i64) strided_dims([[], [], []]) -> tensor<8xf32>
      %o = tensor.insert_slice %r into %empty[%at] [8] [1] : tensor<8xf32> into tensor<64xf32>
      flow.return %o : tensor<64xf32>
    }} count() -> (index, index, index) {{
      %groups = arith.constant 8 : index
      %one = arith.constant 1 : index
      flow.return %groups, %one, %one : index, index, index
    }}
    %zv = hal.tensor.export %z : tensor<64xf32> -> !hal.buffer_view
    util.return %zv : !hal.buffer_view
  }}
}}"#
    )
}

/// Passes the lower right 2x3 of a 4x5 matrix, and a vector, with their strides.
const STRIDED: &str = r#"
module @graph {
  util.func public @main(%xv: !hal.buffer_view) -> !hal.buffer_view attributes {iree.abi.stub} {
    %x = hal.tensor.import %xv : !hal.buffer_view -> tensor<4x5xf32>
    %y = flow.dispatch.region -> (tensor<6xf32>) {
      %empty = tensor.empty() : tensor<6xf32>
      %seven = arith.constant 7 : index
      %part = tensor.extract_slice %x[2, 2] [2, 3] [1, 1] : tensor<4x5xf32> to tensor<2x3xf32>
      %r = iree_codegen.ukernel.generic "flatten"
          ins(%part : tensor<2x3xf32>) outs(%empty : tensor<6xf32>) (%seven : index)
          strided_dims([[0, 1], [0]]) -> tensor<6xf32>
      flow.return %r : tensor<6xf32>
    } count() -> (index, index, index) {
      %one = arith.constant 1 : index
      flow.return %one, %one, %one : index, index, index
    }
    %yv = hal.tensor.export %y : tensor<6xf32> -> !hal.buffer_view
    util.return %yv : !hal.buffer_view
  }
}"#;

fn vmfb(source: &str) -> Vec<u8> {
    compile(source, &CompileOptions::default())
}

fn open(uri: &str, kernels: Kernels) -> Device {
    let options = DeviceOptions::default().kernels(kernels);
    Instance::get().unwrap().device_with(uri, &options).unwrap()
}

fn session(device: &Device, vmfb: &[u8]) -> Session {
    Session::builder(device).module(module(vmfb)).build().unwrap()
}

/// `f(x, y)` of each element, with the scalars checked.
fn elementwise(f: impl Fn(f32, f32) -> f32 + Send + Sync + 'static) -> Kernel {
    let run = move |arguments: &KernelArguments<'_>| {
        assert_eq!((arguments.index(0), arguments.scalar(1)), (PART, -3));
        let [x, y, z] = [0, 1, 2].map(|tensor| arguments.pointer::<f32>(tensor));
        for i in 0..PART {
            // SAFETY: `graph` passes three tensors of that many f32.
            unsafe { *z.add(i) = f(*x.add(i), *y.add(i)) };
        }
        Ok(())
    };
    // SAFETY: `graph` calls it with three tensors and two scalars.
    unsafe { Kernel::new(3, 2, run) }
}

/// `main(x, y)` for x = 0, 1, 2.. and y = `y` everywhere.
fn call(session: &mut Session, y: f32) -> Result<Vec<f32>> {
    let device = session.device().clone();
    let x = device.buffer_view(&[LENGTH], &iota())?;
    let y = device.buffer_view(&[LENGTH], &[y; LENGTH])?;
    let main = session.function("graph.main")?;
    session.call(&main, (x, y))?.view(0)?.read()
}

fn iota() -> Vec<f32> {
    (0..LENGTH).map(|i| i as f32).collect()
}

fn expected(f: impl Fn(f32) -> f32) -> Vec<f32> {
    iota().into_iter().map(f).collect()
}

#[test]
fn compiled_code_calls_a_kernel() {
    let vmfb = vmfb(&graph("scale_add"));
    for uri in DEVICES {
        let device = open(uri, Kernels::new().with("scale_add", elementwise(|x, y| 2. * x + y)));
        let mut session = session(&device, &vmfb);
        assert_eq!(call(&mut session, 0.5).unwrap(), expected(|x| 2. * x + 0.5), "{uri}");
        assert_eq!(call(&mut session, -1.).unwrap(), expected(|x| 2. * x - 1.), "{uri}");
    }
}

#[test]
fn strides_are_passed() {
    let run = |arguments: &KernelArguments<'_>| {
        let (x, y) = (arguments.pointer::<f32>(0), arguments.pointer::<f32>(1));
        assert_eq!(arguments.scalar(0), 7);
        for (row, column) in (0..6).map(|i| (i / 3, i % 3)) {
            let from = row * arguments.stride(0, 0) + column * arguments.stride(0, 1);
            let to = (3 * row + column) * arguments.stride(1, 0);
            // SAFETY: `STRIDED` passes a 2x3 matrix of f32 and 6 places.
            unsafe { *y.add(to) = *x.add(from) };
        }
        Ok(())
    };
    // SAFETY: `STRIDED` calls it with tensors of these strides and one scalar.
    let kernel = unsafe { Kernel::with_strides(&[2, 1], 1, run) };
    let device = open("local-task", Kernels::new().with("flatten", kernel));
    let mut session = session(&device, &vmfb(STRIDED));
    let main = session.function("graph.main").unwrap();
    let x: Vec<f32> = (0..20).map(|i| i as f32).collect();
    let x = device.buffer_view(&[4, 5], &x).unwrap();
    let out = session.call(&main, [x]).unwrap().view(0).unwrap();
    assert_eq!(out.read::<f32>().unwrap(), [12., 13., 14., 17., 18., 19.]);
}

#[test]
fn the_error_of_a_kernel_is_the_error_of_the_call() {
    let run = |arguments: &KernelArguments<'_>| {
        // SAFETY: `graph` passes tensors of at least one f32.
        let y = unsafe { *arguments.pointer::<f32>(1) };
        if y < 0. {
            return Err(Error::new(Code::OutOfRange, format!("{y} is below zero")));
        }
        assert!(y < 10., "{y} is too large");
        if y == 5. {
            arguments.scalar(2);
        }
        Ok(())
    };
    // SAFETY: `graph` calls it with three tensors and two scalars.
    let fussy = unsafe { Kernel::new(3, 2, run) };
    let kernels = Kernels::new().with("fussy", fussy);
    let vmfb = vmfb(&graph("fussy"));
    for uri in DEVICES {
        let mut session = session(&open(uri, kernels.clone()), &vmfb);
        let mut failed = |y| call(&mut session, y).unwrap_err();
        let error = failed(-2.5);
        assert_eq!(error.code(), Code::OutOfRange, "{uri}: {error}");
        for part in ["graph.main", "kernel `fussy`", "-2.5 is below zero"] {
            assert!(error.message().contains(part), "{uri}: {error}");
        }
        let error = failed(11.);
        assert_eq!(error.code(), Code::Internal, "{uri}: {error}");
        assert!(error.message().contains("kernel `fussy`: panicked: 11 is too large"), "{error}");
        let error = failed(5.);
        assert!(error.message().contains("the kernel has no scalar 2"), "{error}");
        // Neither session nor device is the worse for it.
        assert!(call(&mut session, 1.).is_ok(), "{uri}");
    }
}

#[test]
fn a_missing_kernel_is_named() {
    let vmfb = vmfb(&graph("absent"));
    let known = Kernels::new().with("present", elementwise(|x, _| x));
    for (uri, kernels, had) in
        [("local-task", known.clone(), "`present`"), ("local-sync", known, "`present`")]
            .into_iter()
            .chain(DEVICES.map(|uri| (uri, Kernels::new(), "none")))
    {
        let device = open(uri, kernels);
        let error = Session::builder(&device).module(module(&vmfb)).build().unwrap_err();
        assert_eq!(error.code(), Code::Incompatible, "{uri}: {error}");
        let expected =
            format!("kernels that the device was not opened with: `absent` (it was with {had})");
        assert!(error.message().contains(&expected), "{uri}: {error}");
    }
}

#[test]
fn devices_without_kernels_say_so() {
    let kernels = Kernels::new().with("k", elementwise(|x, _| x));
    let options = DeviceOptions::default().kernels(kernels);
    let error = Instance::get().unwrap().device_with("cuda", &options).unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    assert!(error.message().contains("`cuda` cannot call Rust kernels"), "{error}");
}

#[test]
fn kernels_live_as_long_as_what_may_call_them() {
    struct CountsDrop(Arc<AtomicUsize>);
    impl Drop for CountsDrop {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let vmfb = vmfb(&graph("add"));
    for uri in DEVICES {
        let dropped = Arc::new(AtomicUsize::new(0));
        let guard = CountsDrop(dropped.clone());
        let add = elementwise(move |x, y| {
            let _held = &guard;
            x + y
        });
        let device = open(uri, Kernels::new().with("add", add));
        let mut session = session(&device, &vmfb);
        drop(device);
        assert_eq!(call(&mut session, 1.).unwrap(), expected(|x| x + 1.), "{uri}");
        let view = session.device().buffer_view(&[1], &[1f32]).unwrap();
        drop(session);
        assert_eq!(dropped.load(Ordering::SeqCst), 0, "{uri}");
        drop(view);
        assert_eq!(dropped.load(Ordering::SeqCst), 1, "{uri}");
    }
}

#[test]
fn each_device_has_its_own_kernels() {
    let vmfb = vmfb(&graph("same"));
    let add = Kernels::new().with("same", elementwise(|x, y| x + y));
    let multiply = add.clone().with("same", elementwise(|x, y| x * y));
    for uri in DEVICES {
        let mut adds = session(&open(uri, add.clone()), &vmfb);
        let mut multiplies = session(&open(uri, multiply.clone()), &vmfb);
        for _ in 0..2 {
            assert_eq!(call(&mut adds, 3.).unwrap(), expected(|x| x + 3.), "{uri}");
            assert_eq!(call(&mut multiplies, 3.).unwrap(), expected(|x| x * 3.), "{uri}");
        }
    }
}

#[test]
fn threads_call_a_kernel_at_the_same_time() {
    let vmfb = vmfb(&graph("check"));
    // Some calls fail, so that errors of calls side by side have to be told apart, too.
    let run = |arguments: &KernelArguments<'_>| {
        let [x, y, z] = [0, 1, 2].map(|tensor| arguments.pointer::<f32>(tensor));
        for i in 0..arguments.index(0) {
            // SAFETY: `graph` passes three tensors of that many f32.
            let (x, y) = unsafe { (*x.add(i), *y.add(i)) };
            if y >= 1000. {
                return Err(Error::new(Code::Aborted, format!("y is {y}")));
            }
            // SAFETY: as above.
            unsafe { *z.add(i) = x - y };
        }
        Ok(())
    };
    // SAFETY: `graph` calls it with three tensors and two scalars.
    let check = unsafe { Kernel::new(3, 2, run) };
    let device = open("local-task", Kernels::new().with("check", check));
    let caller = |from: usize| {
        let mut session = session(&device, &vmfb);
        move || {
            for y in (0..100).map(|i| (from + i) as f32) {
                assert_eq!(call(&mut session, y).unwrap(), expected(|x| x - y));
                let error = call(&mut session, y + 1000.).unwrap_err();
                let said = format!("kernel `check`: y is {}", y + 1000.);
                assert!(error.message().contains(&said), "{error}");
            }
        }
    };
    thread::scope(|scope| {
        scope.spawn(caller(0));
        scope.spawn(caller(100));
    });
}

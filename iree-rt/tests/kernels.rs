//! Rust functions that graphs dispatch.

mod support;

use std::ops::Range;
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

/// `@main(x, y)`: dispatches kernel `name` in 8 workgroups, with `x`, `y`, the result, and the
/// constants 8 and -3.
fn graph(name: &str) -> String {
    format!(
        r#"
module @graph {{
  func.func @main(%x: tensor<64xf32>, %y: tensor<64xf32>) -> tensor<64xf32> {{
    %workgroups = arith.constant 8 : index
    %length = arith.constant 8 : i32
    %factor = arith.constant -3 : i32
    %z = hal.dispatch.extern "{name}"[%workgroups](%length, %x, %factor, %y)
      : (i32, tensor<64xf32>, i32, tensor<64xf32>) -> tensor<64xf32>
      count(%device: !hal.device, %x_count: index) -> (index, index, index) {{
        %one = arith.constant 1 : index
        hal.return %x_count, %one, %one : index, index, index
      }}
      layout(#hal.pipeline.layout<constants = 2, bindings = [
        #hal.pipeline.binding<storage_buffer, ReadOnly>,
        #hal.pipeline.binding<storage_buffer, ReadOnly>,
        #hal.pipeline.binding<storage_buffer>
      ]>)
      objects({{#hal.executable.target<"vulkan-spirv", "kernels:{name}"> ordinal(0) = [
        #hal.executable.object<{{path = "kernels", data = dense<0> : vector<4xi8>}}>
      ]}})
    return %z : tensor<64xf32>
  }}
}}"#
    )
}

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

/// The elements of one workgroup.
fn part(arguments: &KernelArguments<'_>) -> Range<usize> {
    let [x, y, z] = arguments.workgroup_id();
    assert_eq!([y, z], [0, 0]);
    let start = x as usize * PART;
    start..start + PART
}

/// `f(x, y)` of each element, with all arguments checked.
fn elementwise(f: impl Fn(f32, f32) -> f32 + Send + Sync + 'static) -> Kernel {
    Kernel::new(3, 2, move |arguments: &KernelArguments<'_>| {
        assert_eq!(arguments.constants(), [PART as u32, (-3i32).cast_unsigned()]);
        assert_eq!(arguments.workgroup_count(), [(LENGTH / PART) as u32, 1, 1]);
        for binding in 0..3 {
            assert_eq!(arguments.byte_length(binding), 4 * LENGTH);
        }
        let [x, y, z] = [0, 1, 2].map(|binding| arguments.pointer::<f32>(binding));
        for i in part(arguments) {
            // SAFETY: `graph` passes three tensors of that many f32.
            unsafe { *z.add(i) = f(*x.add(i), *y.add(i)) };
        }
        Ok(())
    })
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
fn a_graph_dispatches_a_kernel() {
    let vmfb = vmfb(&graph("scale_add"));
    for uri in DEVICES {
        let device = open(uri, Kernels::new().with("scale_add", elementwise(|x, y| 2. * x + y)));
        let mut session = session(&device, &vmfb);
        assert_eq!(call(&mut session, 0.5).unwrap(), expected(|x| 2. * x + 0.5), "{uri}");
        assert_eq!(call(&mut session, -1.).unwrap(), expected(|x| 2. * x - 1.), "{uri}");
    }
}

#[test]
fn a_kernel_is_not_called_with_other_numbers_of_arguments() {
    let vmfb = vmfb(&graph("k"));
    for uri in DEVICES {
        for (bindings, constants) in [(2, 2), (4, 2), (3, 1), (3, 3), (0, 0), (64, 64)] {
            let kernel = Kernel::new(bindings, constants, |_| panic!("called"));
            let mut session = session(&open(uri, Kernels::new().with("k", kernel)), &vmfb);
            let error = call(&mut session, 0.).unwrap_err();
            assert_eq!(error.code(), Code::InvalidArgument, "{uri}: {error}");
            let expected = if bindings == 3 { constants } else { bindings };
            assert!(error.message().contains(&format!("expected {expected}")), "{uri}: {error}");
        }
    }
}

/// `@main(x)`: kernel `add`, the second of its executable, in 2 x 3 x 2 workgroups, with `x`, the result and 5.
const GRID: &str = r#"
module @graph {
  func.func @main(%x: tensor<12xi32>) -> tensor<12xi32> {
    %two = arith.constant 2 : index
    %three = arith.constant 3 : index
    %five = arith.constant 5 : i32
    %y = hal.dispatch.extern "add"[%two, %three](%five, %x) : (i32, tensor<12xi32>) -> tensor<12xi32>
      count(%device: !hal.device, %x_count: index, %y_count: index) -> (index, index, index) {
        hal.return %x_count, %y_count, %x_count : index, index, index
      }
      layout(#hal.pipeline.layout<constants = 1, bindings = [
        #hal.pipeline.binding<storage_buffer, ReadOnly>, #hal.pipeline.binding<storage_buffer>
      ]>)
      objects({#hal.executable.target<"vulkan-spirv", "kernels:subtract,add,absent"> ordinal(1) = [
        #hal.executable.object<{path = "kernels", data = dense<0> : vector<4xi8>}>
      ]})
    return %y : tensor<12xi32>
  }
}"#;

/// What [`GRID`] makes of ones, with a kernel that fails in the workgroup `failing`.
fn grid(uri: &str, failing: Option<[u32; 3]>) -> Result<Vec<i32>> {
    let add = Kernel::new(2, 1, move |arguments: &KernelArguments<'_>| {
        let [x, y, z] = arguments.workgroup_id();
        assert_eq!(arguments.workgroup_count(), [2, 3, 2]);
        if failing == Some([x, y, z]) {
            return Err(Error::new(Code::Aborted, "in the middle"));
        }
        let at = (x + 2 * (y + 3 * z)) as usize;
        let [from, to] = [0, 1].map(|binding| arguments.pointer::<i32>(binding));
        let five = arguments.constants()[0].cast_signed();
        // SAFETY: `GRID` passes two tensors of an i32 for each workgroup.
        unsafe { *to.add(at) = *from.add(at) + five * at as i32 };
        Ok(())
    });
    let other = || Kernel::new(0, 0, |_| panic!("not in the graph"));
    let kernels = Kernels::new().with("subtract", other()).with("add", add).with("absent", other());
    let device = open(uri, kernels);
    let mut session = session(&device, &vmfb(GRID));
    let main = session.function("graph.main")?;
    let x = device.buffer_view(&[12], &[1i32; 12])?;
    session.call(&main, [x])?.view(0)?.read()
}

#[test]
fn an_export_is_the_kernel_at_its_place_in_the_format() {
    for uri in DEVICES {
        let expected: Vec<_> = (0..12).map(|at| 1 + 5 * at).collect();
        assert_eq!(grid(uri, None).unwrap(), expected, "{uri}");
    }
    let device = open("local-sync", Kernels::new().with("add", Kernel::new(2, 1, |_| Ok(()))));
    let error = Session::builder(&device).module(module(&vmfb(GRID))).build().unwrap_err();
    let expected = "dispatches kernels that the device was not opened with: `subtract`, `absent` (it was with `add`)";
    assert!(error.message().contains(expected), "{error}");
}

#[test]
fn a_workgroup_that_fails_fails_the_call_wherever_it_is() {
    for uri in DEVICES {
        for failing in [[0, 0, 0], [1, 0, 0], [0, 1, 0], [1, 2, 0], [1, 2, 1]] {
            let error = grid(uri, Some(failing)).unwrap_err();
            assert_eq!(error.code(), Code::Aborted, "{uri}, {failing:?}: {error}");
            assert!(error.message().contains("in the middle"), "{uri}, {failing:?}: {error}");
        }
    }
}

#[test]
fn names_are_what_a_format_can_say() {
    for name in ["", "a,b", "a\0"] {
        let with = || Kernels::new().with(name, Kernel::new(0, 0, |_| Ok(())));
        assert!(std::panic::catch_unwind(with).is_err(), "{name:?}");
    }
    let names = Kernels::new().with("a b:c", Kernel::new(0, 0, |_| Ok(())));
    assert_eq!(names.names().collect::<Vec<_>>(), ["a b:c"]);
}

#[test]
#[should_panic(expected = "at most 64 bindings and constants, not 65 and 1")]
fn a_kernel_has_no_more_arguments_than_a_dispatch() {
    Kernel::new(65, 1, |_| Ok(()));
}

#[test]
fn compiled_code_and_kernels_work_on_each_others_tensors() {
    let source = graph("scale_add")
        .replace(
            "    %workgroups",
            "    %sum = arith.addf %x, %y : tensor<64xf32>\n    %workgroups",
        )
        .replace("(%length, %x,", "(%length, %sum,")
        .replace("return %z", "%double = arith.addf %z, %z : tensor<64xf32>\n    return %double");
    let vmfb = compile(&source, &CompileOptions::default().link_executables(false));
    for uri in DEVICES {
        let device = open(uri, Kernels::new().with("scale_add", elementwise(|x, y| 2. * x + y)));
        let mut session = session(&device, &vmfb);
        let expected = expected(|x| 2. * (2. * (x + 0.5) + 0.5));
        assert_eq!(call(&mut session, 0.5).unwrap(), expected, "{uri}");
    }
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
            arguments.pointer::<f32>(3);
        }
        Ok(())
    };
    let kernels = Kernels::new().with("fussy", Kernel::new(3, 2, run));
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
        assert!(error.message().contains("index out of bounds: the len is 3"), "{error}");
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
        let expected = format!(
            "dispatches kernels that the device was not opened with: `absent` (it was with {had})"
        );
        assert!(error.message().contains(&expected), "{uri}: {error}");
    }
}

#[cfg(feature = "profile")]
#[test]
fn profiles_know_kernels_by_name() {
    for uri in DEVICES {
        let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("kernels-{uri}.ireeprof"));
        let kernels = Kernels::new().with("scale_add", elementwise(|x, y| x + y));
        let options = DeviceOptions::default().kernels(kernels).profile(path);
        let device = Instance::get().unwrap().device_with(uri, &options).unwrap();
        let mut session = session(&device, &vmfb(&graph("scale_add")));
        for _ in 0..3 {
            call(&mut session, 1.).unwrap();
        }
        let profile = device.take_profile().unwrap();
        let costs: Vec<_> = profile.dispatches.iter().map(|it| (&*it.name, it.calls)).collect();
        assert_eq!(costs, [("scale_add", 3)], "{uri}");
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
        let [x, y, z] = [0, 1, 2].map(|binding| arguments.pointer::<f32>(binding));
        for i in part(arguments) {
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
    let device = open("local-task", Kernels::new().with("check", Kernel::new(3, 2, run)));
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

//! GPUs of NVIDIA: what works without one, and (`on_a_gpu`) what needs one or a stand-in.

#[cfg(feature = "cuda")]
mod on_a_gpu;
#[path = "../support/mod.rs"]
mod support;

use iree_rt::cuda::{self, CommandBuffers, Gpu, Options, Target};
use iree_rt::{Code, CompileOptions, Compiler, DeviceOptions, Error, Instance, Kernel, Kernels};
use support::{compile, device};

const ADD: &str = "
module @gate {
  func.func @add(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
    %sum = stablehlo.add %a, %b : tensor<4xf32>
    return %sum : tensor<4xf32>
  }
}";

fn for_target(flags: impl Iterator<Item = String>) -> CompileOptions {
    let options = CompileOptions::empty().flag("--iree-hal-target-device=cuda");
    flags.fold(options, CompileOptions::flag)
}

/// What the value of the PTX directive `name` is in a compiled module.
fn directive<'a>(vmfb: &'a [u8], name: &str) -> &'a str {
    let begin = format!("\n{name} ");
    let at = vmfb.windows(begin.len()).position(|part| part == begin.as_bytes()).unwrap();
    let rest = &vmfb[at + begin.len()..];
    let end = rest.iter().position(|&byte| byte == b'\n').unwrap();
    std::str::from_utf8(&rest[..end]).unwrap()
}

#[test]
fn the_compiler_knows_every_target() {
    for target in Target::ALL {
        let vmfb = compile(ADD, &for_target(target.flags()));
        assert_eq!(directive(&vmfb, ".target"), target.name());
        let driver = match directive(&vmfb, ".version") {
            "7.6" => (11, 6),
            "7.8" => (11, 8),
            "8.7" => (12, 8),
            "8.8" => (12, 9),
            version => panic!("{target}: PTX {version}"),
        };
        assert_eq!(target.driver(), driver, "{target}");
    }
}

#[test]
fn the_compiler_knows_no_target_between() {
    for name in ["sm_52", "sm_88", "sm_90", "sm_100", "sm_103"] {
        let options = for_target([format!("--iree-cuda-target={name}")].into_iter());
        let error = Compiler::find().unwrap().compile(ADD, &options).unwrap_err();
        assert!(error.message().contains("missing GPU target"), "{name}: {error}");
    }
}

/// Why there are no devices of CUDA here; `None` where there may be.
fn why_not() -> Option<Error> {
    let error = cuda::available().err()?;
    let drivers = Instance::get().unwrap().drivers().unwrap();
    let (code, advice) = match drivers.iter().any(|driver| driver.name == "cuda") {
        _ if !cfg!(feature = "cuda") => (Code::Unimplemented, "feature `cuda`"),
        true => (Code::Unavailable, "libcuda.so"),
        false => (Code::NotFound, "`cargo xtask fetch-iree --cuda`"),
    };
    assert_eq!(error.code(), code, "{error}");
    assert!(error.message().contains(advice), "{error}");
    Some(error)
}

#[test]
fn without_a_driver_one_sentence_says_so() {
    let Some(expected) = why_not() else { return };
    let message = expected.message();
    assert!(!message.contains(['\n', '!']) && !message.contains(". "), "{message}");
    assert!(!message.contains(".c:"), "{message}");
    let instance = Instance::get().unwrap();
    for uri in ["cuda", "cuda://", "cuda://0", "cuda://GPU-00000000-0000-0000-0000-000000000000"] {
        let error = instance.device(uri).unwrap_err();
        assert_eq!((error.code(), error.message()), (expected.code(), message), "{uri}");
    }
    let group = instance.device_group(&["local-sync", "cuda"]).unwrap_err();
    assert_eq!(group.message(), message);
    for driver in instance.drivers().unwrap() {
        match driver.name.as_str() {
            "cuda" => assert_eq!(driver.devices().unwrap_err().message(), message),
            // Its own tests say what there is without a library of it.
            "vulkan" => {}
            _ => assert!(!driver.devices().unwrap().is_empty(), "{driver:?}"),
        }
    }
    // Everything else works.
    let numbers = device("local-task").buffer_view(&[2], &[1f32, 2.]).unwrap();
    assert_eq!(numbers.read::<f32>().unwrap(), [1., 2.]);
}

#[test]
fn options_are_for_the_devices_that_have_them() {
    let instance = Instance::get().unwrap();
    let streams = Options::default().command_buffers(CommandBuffers::Graph);
    let pools = Options::default().async_allocations(false);
    for cuda in [streams, pools] {
        let options = DeviceOptions::default().cuda(cuda);
        for uri in ["local-task", "local-sync"] {
            let error = instance.device_with(uri, &options).unwrap_err();
            assert_eq!(error.code(), Code::InvalidArgument);
            assert!(error.message().contains(uri) && error.message().contains("CUDA"), "{error}");
        }
    }
    let plain = DeviceOptions::default;
    let nothing = Kernel::new(0, 0, |_| Ok(()));
    let file = std::env::temp_dir().join("never-made.ireeprof");
    for options in [
        plain().threads(1),
        plain().cpus(vec![0]),
        plain().kernels(Kernels::new().with("never_called", nothing)),
        #[cfg(feature = "profile")]
        plain().profile(file.clone()),
    ] {
        let error = instance.device_with("cuda", &options).unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument);
        assert!(error.message().contains("local-task"), "{error}");
    }
    assert!(!file.exists());
}

#[test]
fn devices_of_the_cpu_are_no_gpus() {
    for uri in ["local-task", "local-sync"] {
        let device = device(uri);
        assert!(!device.is_cuda());
        assert_eq!(Gpu::of(&device).unwrap(), None);
        // Their memory is the system's to judge.
        device.check_fits(u64::MAX).unwrap();
    }
    assert_eq!(Gpu::at("cudax").unwrap(), None);
}

#[test]
fn gpus_are_asked_for_without_a_panic() {
    let found = Gpu::all();
    if !cfg!(feature = "cuda") {
        assert_eq!(found.unwrap_err().code(), Code::Unimplemented);
        return;
    }
    match found {
        Ok(gpus) => assert!(gpus.iter().enumerate().all(|(index, gpu)| gpu.ordinal == index)),
        Err(error) => {
            assert_eq!(error.code(), Code::Unavailable);
            assert!(error.message().contains("libcuda.so"), "{error}");
            assert_eq!(Gpu::at("cuda").unwrap_err().message(), error.message());
        }
    }
}

/// Runs what needs a GPU with a driver that has none: IREE's CUDA driver and `cudarc` are real.
#[test]
#[cfg(feature = "cuda")]
fn a_stand_in_driver_serves_what_needs_a_gpu() {
    use std::env;
    use std::process::Command;

    let drivers = Instance::get().unwrap().drivers().unwrap();
    if !drivers.iter().any(|driver| driver.name == "cuda") {
        eprintln!("not tested: this IREE runtime has no CUDA driver");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cuda/stand_in_driver.rs");
    let rustc = Command::new("rustc")
        .args(["--edition=2024", "--crate-type=cdylib", "-Anon_snake_case", "-o"])
        .arg(folder.path().join("libcuda.so"))
        .arg(source)
        .output()
        .unwrap();
    assert!(rustc.status.success(), "{}", String::from_utf8_lossy(&rustc.stderr));
    let mut path = folder.path().as_os_str().to_owned();
    if let Some(rest) = env::var_os("LD_LIBRARY_PATH") {
        path.push(":");
        path.push(rest);
    }
    let tests = Command::new(env::current_exe().unwrap())
        .args(["on_a_gpu", "--ignored"])
        .env("LD_LIBRARY_PATH", path)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&tests.stdout);
    assert!(tests.status.success(), "{said}{}", String::from_utf8_lossy(&tests.stderr));
    assert!(said.contains("test on_a_gpu::calls_run ... ok"), "{said}");
}

//! The examples under AddressSanitizer's leak checker, on both CPU devices.
//!
//! The sanitizer is preloaded: it sees every allocation of the program, IREE's too. Where the C
//! compiler brings none, or it cannot work, the test says so and passes.

mod support;

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use iree_rt::CompileOptions;

/// What `examples/add.rs` compiles when it is given no module.
const ADD: &str = "
module @gate {
  func.func @add(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
    %sum = stablehlo.add %a, %b : tensor<4xf32>
    return %sum : tensor<4xf32>
  }
}";

/// What `examples/asynchronous.rs` compiles when it is given no module.
const DOUBLE: &str = "
module @gate {
  func.func @double(%a: tensor<4xf32>) -> tensor<4xf32> {
    %sum = stablehlo.add %a, %a : tensor<4xf32>
    return %sum : tensor<4xf32>
  }
}";

const BOTH: [&str; 2] = ["local-sync", "local-task"];

fn sanitizer() -> Option<PathBuf> {
    let output = Command::new("cc").arg("-print-file-name=libasan.so").output().ok()?;
    let path = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
    // A bare name comes back when there is none.
    path.is_absolute().then_some(path)
}

/// Why the sanitizer cannot work here, in its own words, if it says so: an old one whose place in memory is taken, where
/// addresses are drawn from more than it knows (`vm.mmap_rnd_bits`), or one that may not stop the program to look at
/// its threads (ptrace).
fn unable(errors: &str) -> Option<&str> {
    let fatal = ["Shadow memory range interleaves", "LeakSanitizer has encountered a fatal error"];
    errors.lines().find(|line| fatal.iter().any(|words| line.contains(words)))
}

/// The program of an example, built now if this test was built alone.
fn example(name: &str) -> PathBuf {
    let test = env::current_exe().unwrap();
    let profile = test.parent().and_then(Path::parent).unwrap();
    let program = profile.join("examples").join(name);
    let mut build = Command::new(env!("CARGO"));
    build.args([
        "build",
        "--quiet",
        "--package=iree-rt",
        "--features=parameters",
        "--example",
        name,
    ]);
    if profile.ends_with("release") {
        build.arg("--release");
    }
    build.arg("--target-dir").arg(profile.parent().unwrap());
    assert!(program.is_file() || build.status().unwrap().success(), "building the example");
    program
}

/// Runs an example that is given its compiled `source` on each of `devices`, and wants it to print
/// `result`.
fn leaks_nothing(
    name: &str,
    source: impl AsRef<[u8]>,
    options: &CompileOptions,
    devices: &[&str],
    result: &str,
) {
    let Some(sanitizer) = sanitizer() else {
        eprintln!("SKIPPED: the C compiler has no libasan.so");
        return;
    };
    // Compiled here: the compiler's own leaks are not ours.
    let vmfb = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(vmfb.path(), support::compile(source, options)).unwrap();
    for uri in devices {
        let output = Command::new(example(name))
            .arg(uri)
            .arg(vmfb.path())
            .env("LD_PRELOAD", &sanitizer)
            .env("ASAN_OPTIONS", "detect_leaks=1")
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        if let Some(why) = unable(&errors) {
            eprintln!("SKIPPED on {uri}: the leak checker cannot work here: {why}");
            continue;
        }
        assert!(output.status.success(), "{uri}: {}\n{errors}", output.status);
        assert!(!errors.contains("Sanitizer"), "{uri}:\n{errors}");
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), result);
    }
}

#[test]
fn calls_leak_nothing() {
    leaks_nothing("add", ADD, &CompileOptions::default(), &BOTH, "[11.0, 22.0, 33.0, 44.0]");
}

#[test]
fn kernels_leak_nothing() {
    let source = include_str!("../examples/kernel.mlir");
    let result = "[1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 15.0]";
    leaks_nothing("kernel", source, &CompileOptions::default(), &BOTH, result);
}

#[test]
fn calls_in_flight_leak_nothing() {
    let options = CompileOptions::default().flag("--iree-execution-model=async-external");
    let result = "[8.0, 16.0, 24.0, 32.0]";
    leaks_nothing("asynchronous", DOUBLE, &options, &["local-task"], result);
}

#[test]
fn native_modules_and_parameters_leak_nothing() {
    let source = include_str!("../examples/native.mlir");
    let expected = "product = [6.0, 15.0]\n[6.5, 14.5]\nproduct = [9.0, 21.0]\n[9.5, 20.5]";
    leaks_nothing("native", source, &CompileOptions::default(), &BOTH, expected);
}

#[test]
fn models_of_others_leak_nothing() {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models");
    for (name, file, result) in [
        ("recurrent", "recurrent.mlir", "[0.5117]\n[0.5196]\n[0.5240]"),
        (
            "transformer",
            "transformer.mlirbc",
            "[1.6752, 1.2067, -2.2302, 0.3345, -0.8915, -0.9524, 0.9711, 2.1581, -0.5172, 0.0814]",
        ),
    ] {
        let options = CompileOptions::default().fast();
        leaks_nothing(name, std::fs::read(models.join(file)).unwrap(), &options, &BOTH, result);
    }
}

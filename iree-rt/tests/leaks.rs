//! `examples/add.rs` under AddressSanitizer's leak checker, on both CPU devices.
//!
//! The sanitizer is preloaded: it sees every allocation of the program, IREE's too. Where the C
//! compiler brings none, the test says so and passes.

mod support;

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use iree_rt::CompileOptions;

/// What the example compiles when it is given no module.
const ADD: &str = "
module @gate {
  func.func @add(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
    %sum = stablehlo.add %a, %b : tensor<4xf32>
    return %sum : tensor<4xf32>
  }
}";

fn sanitizer() -> Option<PathBuf> {
    let output = Command::new("cc").arg("-print-file-name=libasan.so").output().ok()?;
    let path = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
    // A bare name comes back when there is none.
    path.is_absolute().then_some(path)
}

/// The example's program, built now if this test was built alone.
fn example() -> PathBuf {
    let test = env::current_exe().unwrap();
    let profile = test.parent().and_then(Path::parent).unwrap();
    let program = profile.join("examples").join("add");
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--package", "iree-rt", "--example", "add"]);
    if profile.ends_with("release") {
        build.arg("--release");
    }
    build.arg("--target-dir").arg(profile.parent().unwrap());
    assert!(program.is_file() || build.status().unwrap().success(), "building the example");
    program
}

#[test]
fn the_example_leaks_nothing() {
    let Some(sanitizer) = sanitizer() else {
        eprintln!("not tested: the C compiler has no libasan.so");
        return;
    };
    // Compiled here: the compiler's own leaks are not ours.
    let vmfb = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(vmfb.path(), support::compile(ADD, &CompileOptions::default())).unwrap();
    for uri in ["local-sync", "local-task"] {
        let output = Command::new(example())
            .arg(uri)
            .arg(vmfb.path())
            .env("LD_PRELOAD", &sanitizer)
            .env("ASAN_OPTIONS", "detect_leaks=1")
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{uri}: {}\n{errors}", output.status);
        assert!(!errors.contains("Sanitizer"), "{uri}:\n{errors}");
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "[11.0, 22.0, 33.0, 44.0]");
    }
}

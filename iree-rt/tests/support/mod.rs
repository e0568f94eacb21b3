//! A module with one function of each kind that the tests need, compiled once for all of them.

#![allow(dead_code)]

pub mod in_flight;
#[cfg(feature = "parameters")]
pub mod parameters;

use std::env;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use iree_rt::{Code, CompileOptions, Compiler, Device, Instance, Module, Result, Session};
use iree_sys::allocator::{fail_after, failure_pending, usage};

pub const BOTH_CPU_DEVICES: [&str; 2] = ["local-task", "local-sync"];

/// Functions on tensors of all element types, on scalars, and on state.
pub const KINDS: &str = r#"
module @kinds {
  util.global private mutable @count = dense<0> : tensor<i32>
  func.func @add(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.add %a, %b : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
  func.func @double_any(%a: tensor<?x2xf32>) -> tensor<?x2xf32> {
    %0 = stablehlo.add %a, %a : tensor<?x2xf32>
    return %0 : tensor<?x2xf32>
  }
  func.func @both(%a: tensor<2xf32>) -> (tensor<2xf32>, tensor<2xi1>) {
    %0 = stablehlo.negate %a : tensor<2xf32>
    %1 = stablehlo.compare GT, %a, %0 : (tensor<2xf32>, tensor<2xf32>) -> tensor<2xi1>
    return %0, %1 : tensor<2xf32>, tensor<2xi1>
  }
  func.func @not(%a: tensor<3xi1>) -> tensor<3xi1> {
    %0 = stablehlo.not %a : tensor<3xi1>
    return %0 : tensor<3xi1>
  }
  func.func @double_bf16(%a: tensor<3xbf16>) -> tensor<3xbf16> {
    %0 = stablehlo.add %a, %a : tensor<3xbf16>
    return %0 : tensor<3xbf16>
  }
  func.func @double_u32(%a: tensor<3xui32>) -> tensor<3xui32> {
    %0 = stablehlo.add %a, %a : tensor<3xui32>
    return %0 : tensor<3xui32>
  }
  func.func @scalars(%a: i32, %b: i64, %c: f32, %d: f64) -> (i32, i64, f32, f64) {
    %0 = arith.addi %a, %a : i32
    %1 = arith.addi %b, %b : i64
    %2 = arith.addf %c, %c : f32
    %3 = arith.addf %d, %d : f64
    return %0, %1, %2, %3 : i32, i64, f32, f64
  }
  func.func @step(%by: i32) -> tensor<i32> {
    %old = util.global.load @count : tensor<i32>
    %by_tensor = tensor.from_elements %by : tensor<i32>
    %new = stablehlo.add %old, %by_tensor : tensor<i32>
    util.global.store %new, @count : tensor<i32>
    return %new : tensor<i32>
  }
}
"#;

/// A second module, for sessions of several.
pub const OTHER: &str = r#"
module @other {
  func.func @negate(%a: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.negate %a : tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
"#;

/// What the compiler makes of `source`, kept in a file: each test may be a process of its own.
pub fn compile(source: impl AsRef<[u8]>, options: &CompileOptions) -> Vec<u8> {
    let (source, compiler) = (source.as_ref(), Compiler::find().unwrap());
    let mut key = DefaultHasher::new();
    (source, format!("{options:?}"), compiler.version(), cpu()).hash(&mut key);
    // Where `cargo xtask gpu-check` runs them, the folder of the build is another machine's.
    let folder = env::var_os("CARGO_TARGET_TMPDIR");
    let folder = folder.map_or_else(|| env!("CARGO_TARGET_TMPDIR").into(), PathBuf::from);
    let folder = folder.join("modules");
    let path = folder.join(format!("{:016x}.vmfb", key.finish()));
    if let Ok(bytes) = fs::read(&path) {
        return bytes;
    }
    let bytes = compiler.compile(source, options).unwrap();
    fs::create_dir_all(&folder).unwrap();
    // Whole or not at all, whoever else makes it.
    let mut file = tempfile::NamedTempFile::new_in(&folder).unwrap();
    file.write_all(&bytes).unwrap();
    file.persist(&path).unwrap();
    bytes
}

/// What this machine's CPU has, if the system says so: the target folder may come from another.
fn cpu() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let features =
        text.lines().find(|line| ["flags", "Features"].iter().any(|name| line.starts_with(name)));
    features.map(str::to_owned)
}

/// The bytes of [`KINDS`], compiled.
pub fn kinds() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    // Or else the compiler makes f32 of f64.
    let options = CompileOptions::default().flag("--iree-input-demote-f64-to-f32=false");
    BYTES.get_or_init(|| compile(KINDS, &options))
}

pub fn module(bytes: &[u8]) -> Module {
    // SAFETY: the compiler of this build made the bytes for this machine.
    unsafe { Module::from_bytes(bytes) }.unwrap()
}

pub fn device(uri: &str) -> Device {
    Instance::get().unwrap().device(uri).unwrap()
}

/// A session of [`KINDS`] on a device of its own.
pub fn session(uri: &str) -> Session {
    Session::builder(&device(uri)).module(module(kinds())).build().unwrap()
}

/// Fails allocation after allocation of `work`, until there is none left to fail: each is an error,
/// and nothing is lost. Counts the process's allocations, so run it alone.
pub fn fail_every_allocation(what: &str, least: u32, mut work: impl FnMut() -> Result<()>) {
    // Once for what the process keeps (the instance).
    work().unwrap();
    let mut failures = 0;
    for n in 0.. {
        let (result, reached) = fail_allocation(what, n, &mut work);
        if !reached {
            result.unwrap();
            break;
        }
        if let Err(error) = result {
            assert_eq!(error.code(), Code::ResourceExhausted, "{what}, allocation {n}: {error}");
            failures += 1;
        }
    }
    println!("{what}: {failures} failures");
    assert!(failures >= least, "{what}: only {failures} allocations failed");
}

/// What comes of `work` whose allocation `n` fails, and whether it came to that one. When work returns, a worker may
/// still put it away, and IREE's pools grow by a block for what begins meanwhile, and then stay; a leak comes back
/// every time.
fn fail_allocation(
    what: &str,
    n: u32,
    work: &mut impl FnMut() -> Result<()>,
) -> (Result<()>, bool) {
    let live = || {
        let usage = usage();
        (usage.bytes, usage.blocks)
    };
    let mut leak = String::new();
    for _ in 0..5 {
        let before = live();
        fail_after(Some(n));
        let result = work();
        let reached = !failure_pending();
        fail_after(None);
        let returned = Instant::now();
        let mut after = live();
        while after != before && returned.elapsed() < Duration::from_secs(1) {
            thread::sleep(Duration::from_millis(1));
            after = live();
        }
        if after == before {
            return (result, reached);
        }
        leak = format!("{before:?} before, {after:?} after it: {result:?}");
    }
    panic!("{what}: leaked after allocation {n} failed: {leak}");
}

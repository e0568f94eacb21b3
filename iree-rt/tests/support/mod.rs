//! A module with one function of each kind that the tests need, compiled once per test program.

#![allow(dead_code)]

use std::sync::OnceLock;

use iree_rt::{CompileOptions, Compiler, Device, Instance, Module, Session};

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

pub fn compile(source: &str, options: &CompileOptions) -> Vec<u8> {
    Compiler::find().unwrap().compile(source, options).unwrap()
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

//! The shortest whole path through IREE: StableHLO compiled, loaded, called, read.

use anyhow::{Result, ensure};
use iree_rt::{CompileOptions, Compiler, Instance, Module, Session};

const ADD: &str = "
module @gate {
  func.func @add(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
    %sum = stablehlo.add %a, %b : tensor<4xf32>
    return %sum : tensor<4xf32>
  }
}";

/// Adds `[1, 2, 3, 4]` and `[10, 20, 30, 40]` on `device`.
///
/// # Errors
///
/// Any part of IREE fails, or the sum is wrong.
pub fn add(compiler: &Compiler, device: &str) -> Result<Vec<f32>> {
    let vmfb = compiler.compile(ADD, &CompileOptions::for_device(device))?;
    let device = Instance::get()?.device(device)?;
    // SAFETY: compiled just now from the text above, for this machine.
    let module = unsafe { Module::from_bytes(&vmfb)? };
    let mut session = Session::builder(&device).module(module).build()?;
    let add = session.function("gate.add")?;
    let a = device.buffer_view(&[4], &[1f32, 2., 3., 4.])?;
    let b = device.buffer_view(&[4], &[10f32, 20., 30., 40.])?;
    let sum = session.call(&add, (a, b))?.view(0)?.read::<f32>()?;
    ensure!(sum == [11., 22., 33., 44.], "IREE adds wrongly: {sum:?} instead of [11, 22, 33, 44]");
    Ok(sum)
}

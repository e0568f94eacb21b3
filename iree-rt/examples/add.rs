//! The smallest whole path: compile StableHLO `a + b`, load it, call it, read the result.
//!
//! Run it with `cargo run -p iree-rt --example add`.

use iree_rt::{CompileOptions, Compiler, Instance, Module, Result, Session};

const ADD: &str = "
module @gate {
  func.func @add(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
    %sum = stablehlo.add %a, %b : tensor<4xf32>
    return %sum : tensor<4xf32>
  }
}";

fn main() -> Result<()> {
    // A compiled module given as the argument saves the compilation (leak checkers are slow).
    let vmfb = match std::env::args_os().nth(1) {
        Some(path) => std::fs::read(path)?,
        None => Compiler::find()?.compile(ADD, &CompileOptions::default())?,
    };
    let device = Instance::get()?.device("local-task")?;
    // SAFETY: compiled just now, by our compiler, for the CPU of this machine.
    let module = unsafe { Module::from_bytes(&vmfb)? };
    let mut session = Session::builder(&device).module(module).build()?;
    let add = session.function("gate.add")?;
    let a = device.buffer_view(&[4], &[1f32, 2., 3., 4.])?;
    let b = device.buffer_view(&[4], &[10f32, 20., 30., 40.])?;
    let out = session.call(&add, [a.into(), b.into()])?;
    let sum = out.buffer_view(0)?.read::<f32>()?;
    assert_eq!(sum, [11., 22., 33., 44.]);
    println!("{sum:?}");
    Ok(())
}

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
    // The device may be given, and a module compiled before (leak checkers are slow).
    let mut arguments = std::env::args().skip(1);
    let device = Instance::get()?.device(&arguments.next().unwrap_or("local-task".into()))?;
    let vmfb = match arguments.next() {
        Some(path) => std::fs::read(path)?,
        None => Compiler::find()?.compile(ADD, &CompileOptions::for_device(device.uri()))?,
    };
    // SAFETY: compiled just now, by our compiler, for the CPU of this machine.
    let module = unsafe { Module::from_bytes(&vmfb)? };
    let mut session = Session::builder(&device).module(module).build()?;
    let add = session.function("gate.add")?;
    let a = device.buffer_view(&[4], &[1f32, 2., 3., 4.])?;
    let b = device.buffer_view(&[4], &[10f32, 20., 30., 40.])?;
    let out = session.call(&add, (a, b))?;
    let sum = out.view(0)?.read::<f32>()?;
    assert_eq!(sum, [11., 22., 33., 44.]);
    println!("{sum:?}");
    Ok(())
}

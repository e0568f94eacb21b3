//! A program (`native.mlir`) with what it does not contain: its weights, and Rust functions that it
//! calls.
//!
//! Run it with `cargo run -p iree-rt --features parameters --example native`.

use std::collections::HashMap;

use iree_rt::{
    CompileOptions, Compiler, Instance, Module, NativeModule, ParameterIndex, Result, Session,
    Tensor,
};

const PROGRAM: &str = include_str!("native.mlir");

fn main() -> Result<()> {
    // The device may be given, and a module compiled before (leak checkers are slow).
    let mut arguments = std::env::args().skip(1);
    let device = Instance::get()?.device(&arguments.next().unwrap_or("local-task".into()))?;
    let vmfb = match arguments.next() {
        Some(path) => std::fs::read(path)?,
        None => Compiler::find()?.compile(PROGRAM, &CompileOptions::for_device(device.uri()))?,
    };
    // SAFETY: compiled just now, by our compiler, for the CPU of this machine.
    let program = unsafe { Module::from_bytes(&vmfb)? };

    // Or `ParameterIndex::read_file("model.safetensors")`.
    let model = ParameterIndex::new()?;
    model.add("weights", &[1f32, 2., 3., 4., 5., 6.], b"")?;

    let host = NativeModule::with_state("host", HashMap::new())
        .function("bias", |(x, biases): (Tensor<f32>, Vec<f32>)| {
            let sum: Vec<f32> = x.read()?.iter().zip(biases).map(|(x, bias)| x + bias).collect();
            x.view().device().buffer_view(&[sum.len()], &sum)
        })
        .method("count", |counts, (name,): (String,)| {
            let count = counts.entry(name).or_insert(0);
            *count += 1;
            Ok(*count)
        });

    let mut session = Session::builder(&device)
        .native(host)
        .parameters("model", &model)
        .on_trace(|key, tensors| {
            println!("{key} = {:?}", tensors[0].read::<f32>()?);
            Ok(())
        })
        .module(program)
        .build()?;
    type F32 = Tensor<f32>;
    let run = session.typed::<(F32, Vec<f32>), (F32, i32)>("program.run")?;
    for count in 1..=2 {
        let x = device.buffer_view(&[3], &[1f32, 1., count as f32])?.try_into()?;
        let (sum, calls) = run.call(&mut session, (x, vec![0.5, -0.5]))?;
        assert_eq!(calls, count);
        println!("{:?}", sum.read()?);
    }
    Ok(())
}

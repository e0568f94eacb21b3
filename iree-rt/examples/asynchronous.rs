//! Calls that wait for each other on the device, awaited by an executor whose thread goes on.
//!
//! Run it with `cargo run -p iree-rt --example asynchronous`.

use std::time::Duration;

use iree_rt::{CompileOptions, Compiler, Fence, Instance, Module, Result, Session};

const DOUBLE: &str = "
module @gate {
  func.func @double(%a: tensor<4xf32>) -> tensor<4xf32> {
    %sum = stablehlo.add %a, %a : tensor<4xf32>
    return %sum : tensor<4xf32>
  }
}";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    // A device that works on the calling thread (`local-sync`) cannot wait for it.
    let mut arguments = std::env::args().skip(1);
    let device = Instance::get()?.device(&arguments.next().unwrap_or("local-task".into()))?;
    let vmfb = match arguments.next() {
        Some(path) => std::fs::read(path)?,
        None => {
            let options = CompileOptions::for_device(device.uri())
                .flag("--iree-execution-model=async-external");
            Compiler::find()?.compile(DOUBLE, &options)?
        }
    };
    // SAFETY: compiled just now, by our compiler, for the CPU of this machine.
    let module = unsafe { Module::from_bytes(&vmfb)? };
    let mut session = Session::builder(&device).module(module).build()?;
    let double = session.function("gate.double")?;

    // Three calls in line; the first waits for the host, the others for the one before.
    let (go, ready) = Fence::new(&device)?;
    let a = device.buffer_view(&[4], &[1f32, 2., 3., 4.])?;
    let first = session.call_async(&double, [a], Some(&ready))?;
    let second = session.call_async(&double, [first.early(0)?], Some(first.fence()))?;
    let third = session.call_async(&double, [second.early(0)?], Some(second.fence()))?;

    // The executor's only thread does something else before it lets them go.
    let other = async {
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert!(!second.fence().is_reached()?);
        go.signal()
    };
    let (out, gone) = tokio::join!(third, other);
    gone?;
    let result = out?.view(0)?.read::<f32>()?;
    assert_eq!(result, [8., 16., 24., 32.]);
    println!("{result:?}");
    Ok(())
}

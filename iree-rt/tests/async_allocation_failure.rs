//! Every host allocation of calls in flight fails once: an error each time, nothing lost, no wait
//! for what cannot happen.
//!
//! The failing allocation is counted process-wide, so this program has one test.

mod support;

use std::sync::OnceLock;
use std::time::Duration;

use iree_rt::{
    CompileOptions, Fence, Instance, NativeModule, Result, Semaphore, Session, Tensor, Value,
};

fn compile(source: &str) -> Vec<u8> {
    let options = CompileOptions::default().flag("--iree-execution-model=async-external");
    support::compile(source, &options)
}

fn negate() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    BYTES.get_or_init(|| compile(support::OTHER))
}

fn asking() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    BYTES.get_or_init(|| {
        compile(
            "module @program {
               func.func private @host.add(tensor<4xf32>, !util.list<?>) -> tensor<4xf32>
               func.func @run(%a: tensor<4xf32>, %list: !util.list<?>) -> tensor<4xf32> {
                 %0 = stablehlo.add %a, %a : tensor<4xf32>
                 %1 = call @host.add(%0, %list)
                     : (tensor<4xf32>, !util.list<?>) -> tensor<4xf32>
                 %2 = stablehlo.negate %1 : tensor<4xf32>
                 return %2 : tensor<4xf32>
               }
             }",
        )
    })
}

/// Two calls in line on a group of devices; everything made and dropped.
fn call_in_flight() -> Result<()> {
    let limit = Some(Duration::from_secs(30));
    let group = Instance::get()?.device_group(&["local-task", "local-task"])?;
    let device = group.device(0)?;
    // SAFETY: the compiler of this build made the bytes for this machine.
    let module = unsafe { iree_rt::Module::from_bytes(negate())? };
    let mut session = Session::builder(&group).module(module).build()?;
    let negate = session.function("other.negate")?;
    let a = device.buffer_view(&[4], &[1f32, 2., 3., 4.])?;
    let steps = Semaphore::new(&device, 0)?;
    let (go, ready) = Fence::new(&device)?;
    let both = Fence::join(&device, [&ready, &steps.fence(1)?])?;
    let first = session.call_async(&negate, [a], Some(&both))?;
    let mut second = session.call_async(&negate, [first.early(0)?], Some(first.fence()))?;
    steps.signal(1)?;
    go.signal()?;
    let first = pollster::block_on(first)?.view(0)?;
    assert_eq!(first.to_device(&group.device(1)?)?.read::<f32>()?, [-1., -2., -3., -4.]);
    let mut result = second.wait(limit)?.view(0)?;
    drop((second, session));
    result.map_mut_within::<f32>(Duration::from_secs(30))?[0] = 5.;
    assert_eq!(result.read::<f32>()?, [5., 2., 3., 4.]);
    Ok(())
}

/// A native function between work on the device, and a list that is passed to it.
fn call_a_native_function() -> Result<()> {
    let limit = Some(Duration::from_secs(30));
    let device = Instance::get()?.device("local-task")?;
    // SAFETY: as above.
    let module = unsafe { iree_rt::Module::from_bytes(asking())? };
    let host = NativeModule::new("host").function("add", |(x, by): (Tensor<f32>, Vec<f32>)| {
        let sum: Vec<f32> = x.read()?.iter().map(|x| x + by[0]).collect();
        x.view().device().buffer_view(&[4], &sum)
    });
    let mut session = Session::builder(&device).native(host).module(module).build()?;
    let run = session.function("program.run")?;
    let a = device.buffer_view(&[4], &[1f32, 2., 3., 4.])?;
    let list = vec![Value::from(0.5f32)];
    let mut out = session.call_async(&run, (a, list), None)?;
    let out = out.wait(limit)?.view(0)?;
    assert_eq!(out.read::<f32>()?, [-2.5, -4.5, -6.5, -8.5]);
    Ok(())
}

fn both() -> Result<()> {
    call_in_flight()?;
    call_a_native_function()
}

#[test]
fn every_allocation_may_fail() {
    support::fail_every_allocation("calls in flight", 51, both);
}

//! Every host allocation of a load-and-call fails once: an error each time, nothing lost.
//!
//! The failing allocation is counted process-wide, so this program has one test.

mod support;

use std::sync::OnceLock;

use iree_rt::{
    CompileOptions, Instance, NativeModule, ParameterIndex, Reference, Result, Session, Staging,
    Tensor, Value,
};
use support::{fail_every_allocation, kinds};

/// From device to result, everything made and dropped.
fn load_and_call(uri: &str) -> Result<()> {
    let device = Instance::get()?.device(uri)?;
    // SAFETY: the compiler of this build made the bytes for this machine.
    let module = unsafe { iree_rt::Module::from_bytes(kinds())? };
    let mut session = Session::builder(&device).module(module).build()?;
    let add = session.function("kinds.add")?;
    let mut a = device.buffer_view(&[4], &[1f32, 2., 3., 4.])?;
    let b = device.buffer_view(&[4], &[10f32, 20., 30., 40.])?;
    let mut call = session.prepare(&add)?;
    call.set(0, &a)?;
    call.set(1, &b)?;
    for _ in 0..2 {
        call.invoke(&mut session)?;
        assert_eq!(call.outputs().view(0)?.read::<f32>()?, [11., 22., 33., 44.]);
    }
    drop(call);
    a.fill(0f32)?;
    Ok(())
}

/// The same with all that a session may have: parameters, native functions, traces, lists.
fn with_everything(uri: &str) -> Result<()> {
    let device = Instance::get()?.device(uri)?;
    // SAFETY: as above.
    let module = unsafe { iree_rt::Module::from_bytes(everything())? };
    let model = ParameterIndex::new()?;
    model.add("weights", &[1f32, 2., 3., 4., 5., 6.], b"six")?;
    let host = NativeModule::new("host")
        .function("bias", |(x, list): (Tensor<f32>, Vec<Reference>)| {
            assert_eq!(list[0].downcast_ref::<i32>(), Some(&7));
            x.view().device().buffer_view(&[2], &x.read()?)
        })
        .function("count", |(name,): (String,)| Ok(name.len() as i32));
    let mut session = Session::builder(&device)
        .native(host)
        .parameters("model", &model)
        .on_trace(|_, tensors| tensors[0].read::<f32>().map(drop))
        .module(module)
        .build()?;
    let run = session.function("program.run")?;
    let x = device.buffer_view(&[3], &[1f32, 1., 1.])?;
    let list = vec![Value::from(Reference::new(7)?)];
    for _ in 0..2 {
        let out = session.call(&run, (&x, list.clone()))?;
        assert_eq!(out.view(0)?.read::<f32>()?, [6., 15.]);
    }
    Ok(())
}

fn everything() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    let source = include_str!("../examples/native.mlir");
    BYTES.get_or_init(|| support::compile(source, &CompileOptions::default()))
}

/// A buffer filled piece by piece, by a caller who goes on after an error: no buffer has a hole.
fn staged(uri: &str) -> Result<()> {
    const PIECE: usize = 17 << 20;
    let device = Instance::get()?.device(uri)?;
    let mut staging = Staging::new(&device, 2 * PIECE)?;
    for _ in 0..2 {
        let place = match staging.next(PIECE) {
            Ok(place) => Ok(place),
            Err(_) => staging.next(PIECE),
        };
        place?.fill(7);
    }
    let mut bytes = vec![0; 2 * PIECE];
    staging.finish()?.read_into(0, &mut bytes)?;
    assert!(bytes.iter().all(|&byte| byte == 7), "{uri}: a hole");
    Ok(())
}

#[test]
fn every_allocation_may_fail() {
    for uri in ["local-sync", "local-task"] {
        fail_every_allocation(uri, 51, || load_and_call(uri));
        fail_every_allocation(uri, 51, || with_everything(uri));
        fail_every_allocation(uri, 10, || staged(uri));
    }
}

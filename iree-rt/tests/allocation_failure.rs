//! Every host allocation of a load-and-call fails once: an error each time, nothing lost.
//!
//! The failing allocation is counted process-wide, so this program has one test.

mod support;

use iree_rt::{Code, Instance, Result, Session};
use iree_sys::allocator::{fail_after, failure_pending, usage};
use support::kinds;

/// From device to result, everything made and dropped.
fn load_and_call(uri: &str) -> Result<()> {
    let device = Instance::get()?.device(uri)?;
    // SAFETY: the compiler of this build made the bytes for this machine.
    let module = unsafe { iree_rt::Module::from_bytes(kinds())? };
    let mut session = Session::builder(&device).module(module).build()?;
    let add = session.function("kinds.add")?;
    let a = device.buffer_view(&[4], &[1f32, 2., 3., 4.])?;
    let b = device.buffer_view(&[4], &[10f32, 20., 30., 40.])?;
    let mut call = session.prepare(&add)?;
    call.set(0, &a)?;
    call.set(1, &b)?;
    for _ in 0..2 {
        call.invoke(&mut session)?;
        assert_eq!(call.output_view(0)?.read::<f32>()?, [11., 22., 33., 44.]);
    }
    a.buffer().fill(0..16, 0u32)?;
    Ok(())
}

#[test]
fn every_allocation_may_fail() {
    for uri in ["local-sync", "local-task"] {
        // Once for what the process keeps (the instance).
        load_and_call(uri).unwrap();
        let before = usage();
        let mut failures = 0;
        for n in 0.. {
            fail_after(Some(n));
            let result = load_and_call(uri);
            let reached = !failure_pending();
            fail_after(None);
            let after = usage();
            assert_eq!(
                (after.bytes, after.blocks),
                (before.bytes, before.blocks),
                "{uri}: leaked after allocation {n} failed: {result:?}"
            );
            if !reached {
                result.unwrap();
                break;
            }
            if let Err(error) = result {
                assert_eq!(error.code(), Code::ResourceExhausted, "{uri}, allocation {n}: {error}");
                failures += 1;
            }
        }
        assert!(failures > 50, "{uri}: only {failures} allocations failed");
    }
}

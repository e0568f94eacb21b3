//! Every host allocation of calls in flight fails once: an error each time, nothing lost, no wait
//! for what cannot happen.
//!
//! The failing allocation is counted process-wide, so this program has one test.

mod support;

use std::sync::OnceLock;
use std::time::Duration;

use iree_rt::{Code, CompileOptions, Fence, Instance, Result, Semaphore, Session};
use iree_sys::allocator::{fail_after, failure_pending, usage};

fn negate() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    let options = CompileOptions::default().flag("--iree-execution-model=async-external");
    BYTES.get_or_init(|| support::compile(support::OTHER, &options))
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
    let first = session.call_async(&negate, [a.into()], Some(&both))?;
    let mut second = session.call_async(&negate, [first.early(0)?], Some(first.fence()))?;
    steps.signal(1)?;
    go.signal()?;
    let first = pollster::block_on(first)?.buffer_view(0)?;
    assert_eq!(first.to_device(&group.device(1)?)?.read::<f32>()?, [-1., -2., -3., -4.]);
    let mut result = second.wait(limit)?.buffer_view(0)?;
    drop((second, session));
    result.map_mut::<f32>()?[0] = 5.;
    assert_eq!(result.read::<f32>()?, [5., 2., 3., 4.]);
    Ok(())
}

#[test]
fn every_allocation_may_fail() {
    // Once for what the process keeps (the instance).
    call_in_flight().unwrap();
    let before = usage();
    let mut failures = 0;
    for n in 0.. {
        fail_after(Some(n));
        let result = call_in_flight();
        let reached = !failure_pending();
        fail_after(None);
        let after = usage();
        assert_eq!(
            (after.bytes, after.blocks),
            (before.bytes, before.blocks),
            "leaked after allocation {n} failed: {result:?}"
        );
        if !reached {
            result.unwrap();
            break;
        }
        if let Err(error) = result {
            assert_eq!(error.code(), Code::ResourceExhausted, "allocation {n}: {error}");
            failures += 1;
        }
    }
    assert!(failures > 50, "only {failures} allocations failed");
}

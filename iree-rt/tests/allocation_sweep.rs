//! As `allocation_failure`, for the first use of IREE, look-ups, typed calls, and memory in every
//! way in and out.
//!
//! The failing allocation is counted process-wide, so this program has one test. What is dropped
//! is dropped while the failure is still to come, so that allocations of drops are counted too.

mod support;

use std::fs;

use iree_rt::{
    Buffer, Code, Device, Instance, Literal, Memory, Module, Result, Session, Tensor, Upload,
};
use iree_sys::allocator::{fail_after, failure_pending, usage};
use support::{fail_every_allocation, kinds, session};

/// Loading from a file, and everything that a module tells.
fn load_and_look(uri: &str) -> Result<()> {
    let instance = Instance::get()?;
    for driver in instance.drivers()? {
        let devices = driver.devices();
        // A runtime may have drivers of GPUs whose library this machine lacks; and when it cannot load Vulkan's,
        // IREE tries another name, and says that this was not found.
        if !["vulkan", "cuda"].contains(&driver.name.as_str()) {
            devices?;
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kinds.vmfb");
    fs::write(&path, kinds()).unwrap();
    // SAFETY: the compiler of this build made the file for this machine.
    let module = unsafe { Module::from_file(&path)? };
    assert!(module.functions()?.len() > 5);
    let session = Session::builder(&instance.device(uri)?).module(module.clone()).build()?;
    drop(module);
    match session.function("kinds.nothing").unwrap_err() {
        error if error.code() == Code::NotFound => {}
        error => return Err(error),
    }
    Ok(())
}

/// Calls of every kind, results that outlive what they came from, and calls that fail.
fn call_and_read(session: &mut Session) -> Result<()> {
    type F32 = Tensor<f32>;
    let device = session.device().clone();
    let tensor = || F32::try_from(device.buffer_view(&[4], &[1f32; 4])?);
    let add = session.typed::<(F32, F32), F32>("kinds.add")?;
    assert_eq!(add.call(session, (tensor()?, tensor()?))?.read()?, [2.; 4]);

    type All = (i32, i64, f32, f64);
    let scalars = session.typed::<All, All>("kinds.scalars")?;
    assert_eq!(scalars.call(session, (1, 2, 3., 4.))?, (2, 4, 6., 8.));

    let both = session.function("kinds.both")?;
    let x = device.buffer_view(&[2], &[1f32, -1.])?;
    let out = session.call(&both, [&x])?;
    let (negated, positive) = (out.view(0)?, out.view(1)?);
    drop((out, x, both));
    assert_eq!(negated.read::<f32>()?, [-1., 1.]);
    assert_eq!(positive.read::<bool>()?, [true, false]);

    let any = session.function("kinds.double_any")?;
    let wrong = device.buffer_view(&[1, 3], &[0f32; 3])?;
    match session.call(&any, [wrong]).unwrap_err() {
        error if error.code() == Code::InvalidArgument => Ok(()),
        error => Err(error),
    }
}

/// Memory in every way in and out.
fn move_bytes(device: &Device) -> Result<()> {
    let literal: Literal = "2x2xi32=1 2 3 4".parse()?;
    let view = literal.to_device(device)?;
    assert_eq!(Literal::read(&view)?.to_string(), "2x2xi32=[1 2][3 4]");
    let (from, mut to) = (view.buffer(), Buffer::allocate_in(device, 128, Memory::Host)?);
    to.fill(0..128, 7u8)?;
    to.copy_from(64, &from, 0, 16)?;
    let part = to.subspan(64..80)?;
    drop((from, to));
    assert_eq!(part.view(&[4], literal.element_type())?.read_range::<i32>(1..3)?, [2, 3]);
    assert!(part.host_ptr().is_some() || failure_pending() || !device.is_local());

    let mut owner = memmap2::MmapMut::map_anon(64).unwrap();
    owner.fill(9);
    let imported = Buffer::import(device, owner)?;
    let mut bytes = [0; 64];
    imported.read_into(0, &mut bytes)?;
    assert_eq!(bytes, [9; 64]);

    let mut upload = Upload::new(device, 256)?;
    upload.fill(3);
    let uploaded = upload.finish()?;
    uploaded.read_into(192, &mut bytes)?;
    assert_eq!(bytes, [3; 64]);
    Ok(())
}

/// The first use of IREE in this process: each failure leaves nothing, and the next one tries again.
fn first_use() {
    let before = usage();
    for n in 0.. {
        fail_after(Some(n));
        let made = Instance::get();
        fail_after(None);
        match made {
            Ok(_) => {
                assert!(n >= 2, "the instance took only {n} allocations");
                return;
            }
            Err(error) => assert_eq!(error.code(), Code::ResourceExhausted, "{n}: {error}"),
        }
        let after = usage();
        assert_eq!((after.bytes, after.blocks), (before.bytes, before.blocks), "allocation {n}");
    }
}

#[test]
fn every_allocation_may_fail() {
    kinds();
    first_use();
    for uri in ["local-sync", "local-task"] {
        fail_every_allocation(&format!("load and look, {uri}"), 50, || load_and_look(uri));
        let mut session = session(uri);
        fail_every_allocation(&format!("call and read, {uri}"), 20, || call_and_read(&mut session));
        let device = session.device().clone();
        fail_every_allocation(&format!("move bytes, {uri}"), 5, || move_bytes(&device));
    }
}

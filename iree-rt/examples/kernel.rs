//! A kernel: a Rust function that a compiled graph (`kernel.mlir`) dispatches.
//!
//! Run it with `cargo run -p iree-rt --example kernel`.

use iree_rt::{
    CompileOptions, Compiler, DeviceOptions, Instance, Kernel, KernelArguments, Kernels, Module,
    Result, Session,
};

const SCALE: &str = include_str!("kernel.mlir");

fn main() -> Result<()> {
    // With two bindings, `x` and `y`, and a constant.
    let scale = Kernel::new(2, 1, |arguments: &KernelArguments<'_>| {
        let factor = arguments.constants()[0] as f32;
        let (x, y) = (arguments.pointer::<f32>(0), arguments.pointer::<f32>(1));
        let length = arguments.byte_length(0) / size_of::<f32>();
        let part = length / arguments.workgroup_count()[0] as usize;
        let start = arguments.workgroup_id()[0] as usize * part;
        for i in start..start + part {
            // SAFETY: the graph passes two tensors of f32 of that length, which its workgroups divide,
            // and no other workgroup writes to this part.
            unsafe { *y.add(i) = *x.add(i) * factor + 1. };
        }
        Ok(())
    });
    // The device may be given, and a module compiled before (leak checkers are slow).
    let mut arguments = std::env::args().skip(1);
    let device = Instance::get()?.device_with(
        &arguments.next().unwrap_or("local-task".into()),
        &DeviceOptions::default().kernels(Kernels::new().with("scale", scale)),
    )?;
    let vmfb = match arguments.next() {
        Some(path) => std::fs::read(path)?,
        None => Compiler::find()?.compile(SCALE, &CompileOptions::for_device(device.uri()))?,
    };
    // SAFETY: compiled just now, by our compiler, for the CPU of this machine; it dispatches `scale`
    // with the two tensors that it takes.
    let module = unsafe { Module::from_bytes(&vmfb)? };
    let mut session = Session::builder(&device).module(module).build()?;
    let scale = session.function("gate.scale")?;
    let x = device.buffer_view(&[8], &[0f32, 1., 2., 3., 4., 5., 6., 7.])?;
    let y = session.call(&scale, [x])?.view(0)?.read::<f32>()?;
    assert_eq!(y, [1., 3., 5., 7., 9., 11., 13., 15.]);
    println!("{y:?}");
    Ok(())
}

//! A kernel: a Rust function that a compiled graph calls.
//!
//! Run it with `cargo run -p iree-rt --example kernel`.

use iree_rt::{
    CompileOptions, Compiler, DeviceOptions, Instance, Kernel, Kernels, Module, Result, Session,
};

/// `x * 2 + 1` of 8 numbers in 4 workgroups of 2: each cuts out its part of `x` and of the
/// result, and calls the kernel on them.
///
/// `iree.abi.stub`, with the import and export of buffer views written out, matters: a function
/// that calls a kernel is not inlined into the wrapper that IREE makes otherwise, which then
/// copies all arguments.
const SCALE: &str = r#"
module @gate {
  util.func public @scale(%x_view: !hal.buffer_view) -> !hal.buffer_view
      attributes {iree.abi.stub} {
    %x = hal.tensor.import %x_view : !hal.buffer_view -> tensor<8xf32>
    %y = flow.dispatch.region -> (tensor<8xf32>) {
      %empty = tensor.empty() : tensor<8xf32>
      %group = flow.dispatch.workgroup.id[0] : index
      %at = affine.apply affine_map<()[s0] -> (s0 * 2)>()[%group]
      %part = tensor.extract_slice %x[%at] [2] [1] : tensor<8xf32> to tensor<2xf32>
      %to = tensor.extract_slice %empty[%at] [2] [1] : tensor<8xf32> to tensor<2xf32>
      %length = arith.constant 2 : index
      %factor = arith.constant 2 : i64
      %scaled = iree_codegen.ukernel.generic "scale" ins(%part : tensor<2xf32>)
          outs(%to : tensor<2xf32>) (%length, %factor : index, i64)
          strided_dims([[], []]) -> tensor<2xf32>
      %all = tensor.insert_slice %scaled into %empty[%at] [2] [1]
          : tensor<2xf32> into tensor<8xf32>
      flow.return %all : tensor<8xf32>
    } count() -> (index, index, index) {
      %groups = arith.constant 4 : index
      %one = arith.constant 1 : index
      flow.return %groups, %one, %one : index, index, index
    }
    %y_view = hal.tensor.export %y : tensor<8xf32> -> !hal.buffer_view
    util.return %y_view : !hal.buffer_view
  }
}"#;

fn main() -> Result<()> {
    let scale = Kernel::new(2, 2, |arguments| {
        let (length, factor) = (arguments.index(0), arguments.scalar(1) as f32);
        let (x, y) = (arguments.pointer::<f32>(0), arguments.pointer::<f32>(1));
        for i in 0..length {
            // SAFETY: the graph passes two tensors of f32 of that length.
            unsafe { *y.add(i) = *x.add(i) * factor + 1. };
        }
        Ok(())
    });
    // The device may be given, and a module compiled before (leak checkers are slow).
    let mut arguments = std::env::args().skip(1);
    let device = Instance::get()?.device_with(
        &arguments.next().unwrap_or("local-task".into()),
        &DeviceOptions { kernels: Kernels::new().with("scale", scale), ..Default::default() },
    )?;
    let vmfb = match arguments.next() {
        Some(path) => std::fs::read(path)?,
        None => Compiler::find()?.compile(SCALE, &CompileOptions::for_device(device.uri()))?,
    };
    // SAFETY: compiled just now, by our compiler, for the CPU of this machine; it calls `scale`
    // with the two tensors and two scalars that it is declared with.
    let module = unsafe { Module::from_bytes(&vmfb)? };
    let mut session = Session::builder(&device).module(module).build()?;
    let scale = session.function("gate.scale")?;
    let x = device.buffer_view(&[8], &[0f32, 1., 2., 3., 4., 5., 6., 7.])?;
    let y = session.call(&scale, [x.into()])?.buffer_view(0)?.read::<f32>()?;
    assert_eq!(y, [1., 3., 5., 7., 9., 11., 13., 15.]);
    println!("{y:?}");
    Ok(())
}

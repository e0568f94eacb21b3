//! A model from ONNX whose state stays on the device: what one call leaves is what the next is
//! given, and only the answers are read.
//!
//! Run it with `cargo run -p iree-rt --example recurrent`.

use std::path::Path;

use iree_rt::{
    BufferView, CompileOptions, Compiler, ElementType, Instance, Literal, Module, Result, Session,
};

fn main() -> Result<()> {
    // The device may be given, and a module compiled before (leak checkers are slow).
    let mut arguments = std::env::args().skip(1);
    let device = Instance::get()?.device(&arguments.next().unwrap_or("local-sync".into()))?;
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models");
    let vmfb = match arguments.next() {
        Some(path) => std::fs::read(path)?,
        None => {
            // What `iree-import-onnx` made of the model.
            let source = models.join("recurrent.mlir");
            Compiler::find()?.compile(&source, &CompileOptions::default().fast())?
        }
    };
    // SAFETY: compiled just now, by our compiler, for the CPU of this machine; every shape of the
    // model is fixed.
    let module = unsafe { Module::from_bytes(&vmfb)? };
    let mut session = Session::builder(&device).module(module).build()?;
    let main = session.function("module.main")?;

    let sound = Literal::load_npy(models.join("recurrent_x.npy"))?.to_device(&device)?;
    let mut state = device.buffer_view(&[2, 1, 8], &[0f32; 16])?;
    for chunk in 0..3 {
        // A part of the memory, not a copy: 16 samples of 4 bytes.
        let chunk =
            BufferView::from_buffer(&sound.buffer(), chunk * 64, &[1, 16], ElementType::F32)?;
        let out = session.call(&main, [&chunk, &state])?;
        println!("{:.4?}", out.view(0)?.read::<f32>()?);
        state = out.view(1)?;
    }
    Ok(())
}

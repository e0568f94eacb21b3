//! A model from JAX, as it exports it, awaited: the executor goes on while the session's own thread
//! works.
//!
//! Run it with `cargo run -p iree-rt --example transformer`.

use std::path::Path;

use iree_rt::{CompileOptions, Compiler, Instance, Literal, Module, Result, Session};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    // The device may be given, and a module compiled before (leak checkers are slow).
    let mut arguments = std::env::args().skip(1);
    let device = Instance::get()?.device(&arguments.next().unwrap_or("local-task".into()))?;
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models");
    let vmfb = match arguments.next() {
        Some(path) => std::fs::read(path)?,
        None => {
            // What `jax.export.export(f)(x).mlir_module_serialized` is.
            let source = models.join("transformer.mlirbc");
            Compiler::find()?.compile(&source, &CompileOptions::default().fast())?
        }
    };
    // SAFETY: compiled just now, by our compiler, for the CPU of this machine; every shape of the
    // model is fixed.
    let module = unsafe { Module::from_bytes(&vmfb)? };
    let session = Session::builder(&device).module(module).build()?.into_async()?;

    let image = Literal::load_npy(models.join("transformer_image.npy"))?.to_device(&device)?;
    let logits = session.run(move |session| {
        let main = session.function("jit_main.main")?;
        session.call(&main, [&image])?.view(0)
    });
    let logits = logits.await?;
    let file = std::env::temp_dir().join(format!("logits-{}.npy", std::process::id()));
    Literal::read(&logits)?.save_npy(&file)?;
    println!("{:.4?}", logits.read::<f32>()?);
    std::fs::remove_file(file)?;
    Ok(())
}

//! The Rust of pages in `docs`, which are outside the package, so that it compiles. A test of xtask
//! looks for their lines here.

/// `from-onnx-or-jax.md`: a model that was imported.
///
/// ```no_run
/// use std::path::Path;
///
/// use iree_rt::{CompileOptions, Compiler, Instance, Literal, Module, Session};
///
/// fn main() -> iree_rt::Result<()> {
///     let options = CompileOptions::default().fast();
///     let vmfb = Compiler::find()?.compile(Path::new("model.mlir"), &options)?; // or model.mlirbc
///     let device = Instance::get()?.device("local-task")?;
///     // SAFETY: compiled just now for this CPU, from a source that we trust; every shape is fixed.
///     let module = unsafe { Module::from_bytes(&vmfb)? };
///     let mut session = Session::builder(&device).module(module).build()?;
///     let main = session.function("module.main")?; // of JAX: "jit_f.main"
///     let x = Literal::load_npy("x.npy")?.to_device(&device)?;
///     let out = session.call(&main, [&x])?;
///     Literal::read(&out.view(0)?)?.save_npy("y.npy")?;
///     Ok(())
/// }
/// ```
struct TenLines;

/// `from-onnx-or-jax.md`: state that stays on the device.
///
/// ```no_run
/// use iree_rt::{BufferView, Device, Function, Result, Session};
///
/// fn speak(
///     device: &Device,
///     session: &mut Session,
///     main: Function,
///     chunks: Vec<BufferView>,
/// ) -> Result<()> {
///     let mut state = device.buffer_view(&[2, 1, 8], &[0f32; 16])?;
///     for chunk in chunks {
///         let out = session.call(&main, [&chunk, &state])?;
///         println!("{:?}", out.view(0)?.read::<f32>()?);
///         state = out.view(1)?;
///     }
///     Ok(())
/// }
/// ```
struct StateOnTheDevice;

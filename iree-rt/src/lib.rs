//! Safe bindings of the IREE runtime: load compiled machine-learning modules and call them.
//!
//! Names are IREE's. An [`Instance`] opens [`Device`]s; a [`Module`] is a compiled program; a
//! [`Session`] is modules with their state on a device; a [`Function`] of it takes and returns
//! [`BufferView`]s (tensors) and scalars. The [`Compiler`] makes modules from MLIR text.
//!
//! ```
//! # #[cfg(feature = "link")] fn main() -> iree_rt::Result<()> {
//! use iree_rt::{CompileOptions, Compiler, Instance, Module, Session, Tensor};
//!
//! let vmfb = Compiler::find()?.compile(
//!     "module @gate {
//!        func.func @add(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
//!          %sum = stablehlo.add %a, %b : tensor<4xf32>
//!          return %sum : tensor<4xf32>
//!        }
//!      }",
//!     &CompileOptions::default(),
//! )?;
//! let device = Instance::get()?.device("local-task")?;
//! // SAFETY: compiled just now for the CPU of this machine.
//! let module = unsafe { Module::from_bytes(&vmfb)? };
//! let mut session = Session::builder(&device).module(module).build()?;
//! let a = device.buffer_view(&[4], &[1f32, 2., 3., 4.])?;
//! let b = device.buffer_view(&[4], &[10f32, 20., 30., 40.])?;
//!
//! // Any function, arguments checked by each call:
//! let add = session.function("gate.add")?;
//! let out = session.call(&add, [(&a).into(), (&b).into()])?;
//! assert_eq!(out.buffer_view(0)?.read::<f32>()?, [11., 22., 33., 44.]);
//!
//! // Types checked once, at look-up:
//! let add = session.typed::<(Tensor<f32>, Tensor<f32>), Tensor<f32>>("gate.add")?;
//! let sum = add.call(&mut session, (a.clone().try_into()?, b.clone().try_into()?))?;
//! assert_eq!(sum.read()?, [11., 22., 33., 44.]);
//!
//! // Again and again with arguments that stay, as a model's weights do:
//! let mut call = session.prepare(add.function())?;
//! call.set(0, &a)?;
//! call.set(1, &b)?;
//! for _ in 0..3 {
//!     call.invoke(&mut session)?;
//!     let sum = call.output(0)?;
//!     call.set(1, sum)?;
//! }
//! assert_eq!(call.output_view(0)?.read_range::<f32>(0..2)?, [13., 26.]);
//! # Ok(()) }
//! # #[cfg(not(feature = "link"))] fn main() {}
//! ```
//!
//! # Threads
//!
//! [`Instance`], [`Device`], [`Module`], [`Buffer`], [`BufferView`] and [`Compiler`] may be used
//! by any thread at any time. A [`Session`] and its [`Call`]s are used by one thread at a time
//! and may move between threads; sessions run side by side without a lock.
//!
//! # Memory
//!
//! Everything keeps alive what it was made from, in any order of dropping. [`Upload`] fills a
//! large buffer in place, [`Buffer::import`] takes over host memory (a mapped file) without a
//! copy, and [`BufferView::from_buffer`] makes a tensor of a part of a larger buffer.
//!
//! # Kernels
//!
//! A graph for the CPU devices may call functions of the program that runs it ([`Kernels`]):
//! `examples/kernel.rs` shows both sides.
//!
//! # Errors
//!
//! There is one [`struct@Error`], with a [`Code`] to match on and a message that carries what IREE
//! says, where it says it, and the diagnostics of the compiler. Nothing is printed.
//!
//! # Leaks and races
//!
//! `cargo xtask sanitize` runs the tests, and IREE with them, under AddressSanitizer,
//! LeakSanitizer and ThreadSanitizer; the test `leaks` runs the examples under the leak checker of
//! GCC each time, as this does (Valgrind before 3.24 waits forever for the io_uring thread of
//! IREE's devices):
//!
//! ```text
//! cargo build -p iree-rt --example add
//! LD_PRELOAD=$(cc -print-file-name=libasan.so) target/debug/examples/add
//! ```

#![warn(missing_debug_implementations)]

pub mod buffer;
mod buffer_view;
mod call;
pub mod compiler;
mod device;
mod driver;
mod element;
mod error;
mod executable_loader;
mod function;
mod import;
mod instance;
mod kernel;
mod list;
mod literal;
mod local_device;
mod module;
mod profile;
mod semaphore;
mod session;
mod signature;
mod status;
mod typed;
mod upload;
mod value;

pub use buffer::{Buffer, Memory};
pub use buffer_view::{BufferView, Mapped};
pub use call::{Call, Outputs};
pub use compiler::{CompileOptions, Compiler};
pub use device::{Device, DeviceOptions};
pub use driver::{DeviceInfo, DriverInfo};
pub use element::{Element, ElementType};
pub use error::{Code, Error, Result};
pub use function::{Function, FunctionInfo};
pub use half::{bf16, f16};
pub use instance::Instance;
pub use iree_sys::IREE_VERSION;
pub use kernel::{Kernel, KernelArguments, Kernels};
pub use literal::Literal;
pub use module::Module;
pub use profile::{DispatchCost, Profile};
pub use session::{Session, SessionBuilder};
pub use signature::{ScalarType, Signature, ValueType};
pub use typed::{Parameters, Results, Tensor, Typed, TypedFunction};
pub use upload::Upload;
pub use value::Value;

//! Safe bindings of the IREE runtime: load compiled machine-learning modules and call them.
//!
//! Names are IREE's. An [`Instance`] opens [`Device`]s; a [`Module`] is a compiled program; a
//! [`Session`] is modules with their state on a device; a [`Function`] of it takes and returns
//! [`BufferView`]s (tensors), scalars and other [`Value`]s. The [`Compiler`] makes modules from MLIR text.
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
//! let out = session.call(&add, [&a, &b])?;
//! assert_eq!(out.view(0)?.read::<f32>()?, [11., 22., 33., 44.]);
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
//!     call.set(1, call.outputs().get(0)?)?;
//! }
//! assert_eq!(call.outputs().view(0)?.read_range::<f32>(0..2)?, [13., 26.]);
//! # Ok(()) }
//! # #[cfg(not(feature = "link"))] fn main() {}
//! ```
//!
//! # Threads
//!
//! [`Instance`], [`Device`], [`Module`], [`Buffer`], [`BufferView`], [`Fence`], [`Semaphore`] and
//! [`Compiler`] may be used by any thread at any time. A [`Session`] and its [`Call`]s are used by
//! one thread at a time and may move between threads; sessions run side by side without a lock.
//!
//! # Memory
//!
//! Everything keeps alive what it was made from, in any order of dropping. [`Upload`] fills a
//! large buffer in place, [`Staging`] piece by piece while the device copies, [`Buffer::import`] takes over host memory (a mapped file) without a
//! copy, and [`BufferView::from_buffer`] makes a tensor of a part of a larger buffer.
//!
//! A tensor is read and written by copies, or in place: [`BufferView::map_mut`] is safe, because
//! it is for the only handle; [`BufferView::map`] trusts its caller. [`Buffer::export`] and
//! `import_…` exchange addresses with other libraries; the features `ndarray` and `dlpack` arrays.
//! A [`Literal`] is a tensor on the host, and its text.
//!
//! # What a program may ask for
//!
//! A [`NativeModule`] has Rust functions that a program imports and calls. A [`ParameterIndex`]
//! (or a [`ParameterProvider`], which takes what programs write, too) has the weights that it names
//! instead of containing them. Compiled modules import from those before them in a session.
//! `examples/native.rs` shows it; a program that traces tensors tells [`SessionBuilder::on_trace`] of
//! them.
//!
//! Besides tensors and scalars, functions take and return lists, bytes, and references to Rust
//! values that they pass on ([`Value`]).
//!
//! # What safe code may pass
//!
//! Compiled code checks neither that the dynamic extents of its arguments fit together nor that an
//! index is inside a tensor: loading a module is `unsafe`, and its
//! [contract](Module::from_bytes) covers what safe code passes to it. A program that says which
//! extents are equal is checked for that before every call, and a
//! [validator](SessionBuilder::validate) checks whatever else has to be so.
//!
//! # Calls in flight
//!
//! A function that was compiled with `--iree-execution-model=async-external`, or imported from ONNX or
//! PyTorch, may be started without waiting for it ([`Session::call_async`]). It waits for a [`Fence`] and reaches one; a [`Pending`]
//! is a future of its results for any executor, woken by IREE. `examples/asynchronous.rs` shows
//! it. An [`AsyncSession`] awaits any call, on a thread of its own. Waits take timeouts. What fails
//! fails everything that waits for it, with its error; a fence whose [`Signal`] is dropped fails
//! too, so that nothing waits for ever. A [`Canceller`] stops a session between calls.
//!
//! # Several devices
//!
//! A [`DeviceGroup`] is devices for one session; [`BufferView::to_device`] moves tensors between
//! any devices.
//!
//! # Kernels
//!
//! A graph for the CPU devices may call functions of the program that runs it ([`Kernels`]):
//! `examples/kernel.rs` shows both sides.
//!
//! # GPUs
//!
//! A runtime with IREE's CUDA driver opens GPUs of NVIDIA (`cuda`, `cuda://1`); [`cuda`] says what to
//! compile for them, and with the feature `cuda` what there is and how memory is exchanged with the
//! crate `cudarc`. Nothing of CUDA is needed to build. No GPU has run it yet.
//!
//! # Errors
//!
//! There is one [`struct@Error`], with a [`Code`] to match on and a message that carries what IREE
//! says, where it says it, and the diagnostics of the compiler. Nothing is printed, unless
//! [`SessionBuilder::trace_execution`] asks for it.
//!
//! # What this crate does not reach
//!
//! The feature `raw` hands out IREE's own objects (`as_raw`) and the bindings of its C API
//! (`iree_rt::sys`). Both change with IREE's version, and are no part of the stable API.
//!
//! ```
//! # #[cfg(all(feature = "link", feature = "raw"))] fn main() -> iree_rt::Result<()> {
//! use iree_rt::{Instance, sys};
//!
//! let device = Instance::get()?.device("local-task")?;
//! let view = device.buffer_view(&[2, 3], &[0f32; 6])?;
//! // SAFETY: the pointer is valid while `view` is.
//! let encoding = unsafe { sys::iree_hal_buffer_view_encoding_type(view.as_raw()) };
//! assert_eq!(encoding, sys::IREE_HAL_ENCODING_TYPE_DENSE_ROW_MAJOR);
//! # Ok(()) }
//! # #[cfg(not(all(feature = "link", feature = "raw")))] fn main() {}
//! ```
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

// What every call of IREE ends in, and what its calls of us begin with.
mod callback;
mod error;
mod status;

// The process, and devices with what runs on them.
pub mod cuda;
mod device;
mod device_group;
mod driver;
mod executable_loader;
mod heap;
mod instance;
mod kernel;
mod local_device;
mod profile;
mod statistics;

// Tensors in their memory, and their ways in and out.
pub mod buffer;
mod buffer_view;
#[cfg(feature = "dlpack")]
mod dlpack;
mod element;
mod export;
mod import;
mod literal;
mod mapping;
#[cfg(feature = "ndarray")]
mod ndarray;
mod staging;
mod upload;

// Programs.
pub mod compiler;
mod extents;
mod function;
mod module;
mod signature;

// Sessions of them, and what they find there.
mod canceller;
mod native;
mod parameters;
mod session;
mod session_builder;
mod trace;

// Calls.
mod arguments;
mod call;
mod list;
mod outputs;
mod reference;
mod results;
mod typed;
mod typed_function;
mod value;

// Calls in flight.
mod async_session;
mod fence;
mod pending;
mod reached;
mod semaphore;
mod timepoint;

#[cfg(feature = "raw")]
mod raw;

#[cfg(doctest)]
#[allow(dead_code)]
mod misuse;

pub use arguments::{Argument, Arguments};
pub use async_session::{AsyncSession, Running};
pub use buffer::{Buffer, Memory};
pub use buffer_view::BufferView;
pub use call::Call;
pub use canceller::Canceller;
pub use compiler::{CompileLimits, CompileOptions, Compiler};
pub use device::{Device, DeviceOptions};
pub use device_group::DeviceGroup;
pub use driver::{DeviceInfo, DriverInfo};
pub use element::{Element, ElementType};
pub use error::{Code, Error, Result};
pub use export::ExternalBuffer;
pub use fence::{Fence, Signal};
pub use function::{Function, FunctionInfo};
pub use half::{bf16, f16};
pub use instance::Instance;
pub use iree_sys::IREE_VERSION;
pub use kernel::{Kernel, KernelArguments, Kernels};
pub use literal::Literal;
pub use mapping::{Mapped, MappedMut};
pub use module::Module;
pub use native::{FromArguments, IntoResults, NativeModule};
pub use outputs::Outputs;
pub use parameters::{ParameterEntry, ParameterFormat, ParameterIndex, ParameterProvider};
pub use pending::{Pending, TypedPending};
pub use profile::{DispatchCost, Profile};
pub use reached::Reached;
pub use reference::Reference;
pub use results::Results;
pub use semaphore::Semaphore;
pub use session::Session;
pub use session_builder::SessionBuilder;
pub use signature::{ScalarType, Signature, ValueType};
pub use staging::Staging;
pub use statistics::{MemoryStatistics, MemoryUse};
pub use typed::{Tensor, Typed};
pub use typed_function::TypedFunction;
pub use upload::Upload;
pub use value::Value;

#[cfg(feature = "raw")]
pub use iree_sys as sys;

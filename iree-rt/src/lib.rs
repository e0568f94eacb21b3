//! Safe bindings of the IREE runtime: load compiled machine-learning modules and call them.
//!
//! Names are IREE's. An [`Instance`] opens [`Device`]s; a [`Module`] is a compiled program; a
//! [`Session`] is modules with their state on a device; a [`Function`] of it takes and returns
//! [`BufferView`]s (tensors), scalars and other [`Value`]s. The [`Compiler`] makes modules from MLIR:
//! text, bytecode, and files of either.
//!
//! ```
//! # #[cfg(all(feature = "link", feature = "compiler"))] fn main() -> iree_rt::Result<()> {
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
//! # #[cfg(not(all(feature = "link", feature = "compiler")))] fn main() {}
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
//! large buffer in place, [`Staging`] piece by piece while the device copies, [`Buffer::import`]
//! takes over host memory (a mapped file) without a copy, and [`BufferView::from_buffer`] makes a
//! tensor of a part of a larger buffer.
//!
//! Any handle reads, and [only the only one writes](buffer#who-may-write). A tensor is read and
//! written by copies, in place ([`BufferView::map_mut`]; [`BufferView::map`] trusts its caller), or
//! without blocking ([`BufferView::read_async`], `write_async`). [`Buffer::export`] and
//! `import_…` exchange addresses with other libraries; the features `ndarray` and `dlpack` arrays.
//! A [`Literal`] is a tensor on the host, and its text.
//!
//! # Features
//!
//! | Feature | Adds | Brings |
//! |---|---|---|
//! | `link` (default) | IREE's runtime; without it the crate type-checks and documents only | |
//! | `compiler` (default) | [`Compiler`]: it makes what the example above runs | `tempfile`, `libloading` |
//! | `parameters` | [`ParameterIndex`], [`ParameterProvider`]: weights that programs name | `safetensors`, `fs4`, `tempfile` |
//! | `profile` | [`Device::take_profile`] and [`Profile`]: what each compiled function costs | |
//! | `cuda` | GPUs of NVIDIA ([`cuda`]), and memory exchanged with `cudarc` 0.19 | `cudarc`, `libloading` |
//! | `vulkan` | what devices of [`vulkan`] are, and what to compile for them | `ash` |
//! | `dlpack` | tensors from and to DLPack, with the types of `dlpark` 0.10 | `dlpark` |
//! | `ndarray` | tensors from and to the arrays of `ndarray` 0.17 | `ndarray` |
//! | `raw` | IREE's own objects and C API, no part of what is stable | |
//! | `bundled` | builds the runtime where there is no IREE folder | cmake |
//! | `bundled-compiler` | brings IREE's compiler with the build, and includes `bundled` | pip (network) |
//! | `remember-folder` | release builds find the compiler of the folder that they were built with | |
//!
//! Signatures have types of `cudarc`, `dlpark` and `ndarray`: another version of these is another
//! version of this crate. The README says where IREE comes from.
//!
//! A program that runs what was compiled before asks for `link` alone
//! (`default-features = false, features = ["link"]`). [`bytemuck`] and [`half`], whose traits and
//! types are in signatures, are exported again.
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
//! PyTorch, may be started without waiting for it ([`Session::call_async`]). It waits for a
//! [`Fence`] and reaches one; a [`Pending`] is a future of its results for any executor, woken by
//! IREE. `examples/asynchronous.rs` shows it. An [`AsyncSession`] awaits any call, on a thread of
//! its own. Waits take timeouts. What fails fails everything that waits for it, with its error; a
//! fence whose [`Signal`] is dropped fails too, so that nothing waits for ever. A [`Canceller`]
//! stops a session between calls.
//!
//! # Several devices
//!
//! A [`DeviceGroup`] is devices for one session; [`BufferView::to_device`] moves tensors between
//! any devices.
//!
//! # Kernels
//!
//! A graph for the CPU devices may dispatch functions of the program that runs it ([`Kernels`]), beside what is
//! compiled or instead: `examples/kernel.rs` shows both sides.
//!
//! # GPUs
//!
//! With the feature `cuda`, a runtime with IREE's CUDA driver opens GPUs of NVIDIA (`cuda`,
//! `cuda://1`), and memory is exchanged with the crate `cudarc`; [`cuda`] says what to compile for
//! them, and what there is. Nothing of CUDA is needed to build.
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
#![cfg_attr(docsrs, feature(doc_cfg))]
// The documentation links to what features add.
#![cfg_attr(
    not(all(feature = "compiler", feature = "parameters", feature = "profile")),
    allow(rustdoc::broken_intra_doc_links)
)]

// In the order of what uses what: nothing uses what comes after it.

mod base;

mod hal;

mod vm;

mod host;

mod calls;

mod exchange;

mod tools;

pub mod cuda;
pub mod vulkan;

#[cfg(feature = "raw")]
mod raw;

#[cfg(doctest)]
#[allow(dead_code)]
mod misuse;

#[cfg(all(doctest, feature = "compiler"))]
#[allow(dead_code)]
mod pages;

#[doc(no_inline)]
pub use {bytemuck, half};

pub use base::canceller::Canceller;
pub use base::error::{Code, Error, Result};
pub use base::instance::Instance;
pub use calls::arguments::{Argument, Arguments};
pub use calls::async_session::{AsyncSession, Running};
pub use calls::call::Call;
pub use calls::call_async::TypedPending;
pub use calls::outputs::Outputs;
pub use calls::pending::Pending;
pub use calls::results::Results;
pub use calls::session::Session;
pub use calls::session_builder::SessionBuilder;
pub use calls::typed_function::TypedFunction;
pub use exchange::literal::Literal;
pub use hal::devices::device::Device;
pub use hal::devices::device_group::DeviceGroup;
pub use hal::devices::device_options::DeviceOptions;
pub use hal::devices::driver::{DeviceInfo, DriverInfo};
pub use hal::devices::kernel::{Kernel, KernelArguments, Kernels};
pub use hal::devices::local_device::default_workers;
#[cfg(feature = "profile")]
pub use hal::devices::recorder::{DispatchCost, Profile};
pub use hal::devices::statistics::{MemoryStatistics, MemoryUse};
pub use hal::memory::buffer::{self, Buffer, Memory};
pub use hal::memory::buffer_view::BufferView;
pub use hal::memory::element::{Element, ElementType};
pub use hal::memory::export::ExternalBuffer;
pub use hal::memory::mapping::{Mapped, MappedMut};
pub use hal::memory::staging::Staging;
pub use hal::memory::upload::Upload;
pub use hal::sync::fence::Fence;
pub use hal::sync::reached::Reached;
pub use hal::sync::semaphore::Semaphore;
pub use hal::sync::signal::Signal;
pub use half::{bf16, f16};
pub use host::native::{FromArguments, IntoResults, NativeModule};
#[cfg(feature = "parameters")]
pub use host::parameters::{ParameterEntry, ParameterFormat, ParameterIndex, ParameterProvider};
pub use iree_sys::IREE_VERSION;
#[cfg(feature = "compiler")]
pub use tools::compiler::{
    CompileLimits, CompileOptions, Compiled, Compiler, InputType, OptLevel, Source,
};
pub use vm::function::{Function, FunctionInfo};
pub use vm::module::Module;
pub use vm::reference::Reference;
pub use vm::reflection::{Attributes, DependencyInfo, ImportInfo};
pub use vm::signature::{ScalarType, Signature, ValueType};
pub use vm::typed::{Tensor, Typed};
pub use vm::value::Value;

#[cfg(feature = "raw")]
pub use iree_sys as sys;

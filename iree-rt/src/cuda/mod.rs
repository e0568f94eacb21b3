//! GPUs of NVIDIA: what is there, what to compile for, and memory shared with `cudarc`.
//!
//! With the feature `cuda`, a runtime that was made by `cargo xtask fetch-iree --cuda` opens devices
//! of `cuda`; the build and the machine need no CUDA toolkit, only the machine needs NVIDIA's driver
//! (`libcuda.so`), which is looked for when a device is asked for. The feature also answers what
//! [`Gpu`] asks the driver, and exchanges memory with the crate `cudarc` 0.19
//! (`SharedSlice`, `BufferView::from_cuda`, `BufferView::to_cuda`). [`Target`] and [`Options`] are in
//! every build, and [`available`] says what is missing.
//!
//! Tested on an H100, and in every build with a stand-in for NVIDIA's driver.

mod gpu;
mod target;

pub use crate::hal::cuda::options::{CommandBuffers, Options};
pub use gpu::{Gpu, available};
pub use target::Target;

#[cfg(feature = "cuda")]
pub use crate::exchange::cuda::SharedSlice;

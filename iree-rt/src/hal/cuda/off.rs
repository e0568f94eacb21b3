//! In place of `open` and `context`, without the feature `cuda`: no GPU is opened.

use std::ptr::NonNull;

use iree_sys as sys;

use crate::base::error::{Code, Error, Result};
use crate::hal::cuda::options::Options;

/// Why there are no devices of CUDA.
pub(crate) fn not_built() -> Error {
    let message = "this program was built without iree-rt's feature `cuda`, which opens GPUs";
    Error::new(Code::Unimplemented, message)
}

pub(crate) fn library() -> Result<()> {
    Err(not_built())
}

pub(crate) fn open(_: &str, _: &Options) -> Result<(NonNull<sys::iree_hal_device_t>, Context)> {
    Err(not_built())
}

/// No device has one.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Context {}

impl Context {
    pub(crate) fn enter(&self) {
        match *self {}
    }
}

//! In place of `open` and `context`, without the feature `cuda`: no GPU is opened.

use std::ptr::NonNull;

use iree_sys as sys;

use crate::cuda::Options;
use crate::error::{Code, Error, Result};

/// Why there are no devices of CUDA: this build is without the feature `cuda`.
///
/// # Errors
/// [`Unimplemented`](Code::Unimplemented), always.
pub fn available() -> Result<()> {
    let message = "this program was built without iree-rt's feature `cuda`, which opens GPUs";
    Err(Error::new(Code::Unimplemented, message))
}

pub(crate) fn open(_: &str, _: &Options) -> Result<(NonNull<sys::iree_hal_device_t>, Context)> {
    Err(available().unwrap_err())
}

/// No device has one.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Context {}

impl Context {
    pub(crate) fn enter(&self) {
        match *self {}
    }
}

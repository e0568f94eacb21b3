//! In place of `profile`, without its feature: no device records.

use std::path::Path;
use std::ptr::NonNull;

use iree_sys as sys;

use crate::base::error::{Code, Error, Result};

/// There is none.
#[derive(Debug)]
pub(crate) enum Recorder {}

impl Recorder {
    pub(crate) fn begin(_: NonNull<sys::iree_hal_device_t>, _: &Path) -> Result<Self> {
        Err(Error::new(Code::Unimplemented, "iree-rt's feature `profile` is off in this build"))
    }

    pub(crate) fn finish(&self, _: NonNull<sys::iree_hal_device_t>) {
        match *self {}
    }
}

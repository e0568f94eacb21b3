//! In place of `ask`, without the feature `vulkan`: nobody is asked.

use super::gpu::Gpu;
use crate::base::error::{Code, Error, Result};

/// Says why there are none.
pub(super) fn loader() -> Result<()> {
    let message = "this program was built without iree-rt's feature `vulkan`, which asks Vulkan what its devices are";
    Err(Error::new(Code::Unimplemented, message))
}

pub(super) fn all() -> Result<Vec<Gpu>> {
    loader().map(|()| Vec::new())
}

pub(super) fn free_bytes(_: usize) -> Result<Option<u64>> {
    loader().map(|()| None)
}

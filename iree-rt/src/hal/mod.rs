//! IREE's hardware abstraction layer: devices, their memory, and time.

pub(crate) mod cuda;
pub(crate) mod devices;
pub(crate) mod memory;
pub(crate) mod sync;
pub(crate) mod vulkan;

//! Devices of Vulkan: what is there, and what to compile for them.
//!
//! With the feature `vulkan`, [`Gpu`] asks the system's Vulkan, which is loaded when a device is asked for:
//! neither a build nor a program that uses no such device needs it. A runtime that was made by `cargo
//! xtask fetch-iree --vulkan` opens them (`vulkan://0`), with or without the feature; [`available`]
//! says what is missing.
//!
//! Tested on one driver alone, Mesa's lavapipe, which computes on the CPU: no GPU has run this yet.

mod target;

pub use crate::hal::vulkan::gpu::{Features, Gpu, Kind, available};
pub use target::Target;

use crate::base::error::Result;
use crate::hal::devices::device::Device;
use crate::hal::vulkan::path;

impl Gpu {
    /// The Vulkan device behind a device, if it is one.
    ///
    /// # Errors
    /// As [`at`](Self::at).
    pub fn of(device: &Device) -> Result<Option<Self>> {
        Self::at(device.uri())
    }

    /// What to compile for it.
    pub fn target(&self) -> Target {
        Target::of(self)
    }
}

impl Device {
    /// Whether it is a device of Vulkan.
    pub fn is_vulkan(&self) -> bool {
        path(self.uri()).is_some()
    }
}

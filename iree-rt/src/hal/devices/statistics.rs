//! How much memory a device's allocator has given out.

use iree_sys as sys;

use crate::hal::devices::device::Device;

/// Bytes that the allocator of a device has given out, in all sessions of it.
///
/// Pooled memory counts as allocated once, when the pool takes it; imported memory never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryStatistics {
    /// In memory of the host.
    pub host: MemoryUse,
    /// In memory of the device; on CPU devices, which have none of their own, what programs use.
    pub device: MemoryUse,
}

/// Bytes given out and taken back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryUse {
    /// The most that was in use at once, bytes.
    pub peak: u64,
    /// Given out so far, bytes.
    pub allocated: u64,
    /// Taken back of it, bytes.
    pub freed: u64,
}

impl MemoryUse {
    /// In use now, bytes.
    pub fn live(&self) -> u64 {
        self.allocated.saturating_sub(self.freed)
    }
}

impl Device {
    /// What its allocator has given out since it was opened.
    ///
    /// All zero when the runtime was built without `IREE_STATISTICS_ENABLE`.
    ///
    /// ```
    /// # #[cfg(feature = "link")] fn main() -> iree_rt::Result<()> {
    /// use iree_rt::{Buffer, Instance};
    ///
    /// let device = Instance::get()?.device("local-task")?;
    /// let buffer = Buffer::allocate(&device, 1 << 20)?;
    /// assert_eq!(device.memory_statistics().device.live(), 1 << 20);
    /// drop(buffer);
    /// let used = device.memory_statistics().device;
    /// assert_eq!((used.live(), used.peak), (0, 1 << 20));
    /// device.trim()?; // the CPU devices keep such blocks for the next call
    /// # Ok(()) }
    /// # #[cfg(not(feature = "link"))] fn main() {}
    /// ```
    pub fn memory_statistics(&self) -> MemoryStatistics {
        let mut raw = sys::iree_hal_allocator_statistics_t::default();
        // SAFETY: the allocator belongs to the live device.
        unsafe { sys::iree_hal_allocator_query_statistics(self.allocator(), &mut raw) };
        MemoryStatistics {
            host: MemoryUse {
                peak: raw.host_bytes_peak as _,
                allocated: raw.host_bytes_allocated as _,
                freed: raw.host_bytes_freed as _,
            },
            device: MemoryUse {
                peak: raw.device_bytes_peak as _,
                allocated: raw.device_bytes_allocated as _,
                freed: raw.device_bytes_freed as _,
            },
        }
    }
}

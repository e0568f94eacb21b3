//! Devices: what runs modules and holds buffers.

use std::fmt;

use iree_sys as sys;

use crate::base::error::{Code, Error, Result};
use crate::base::status::check;
use crate::hal::cuda::Context;
use crate::hal::devices::device_group::DeviceGroup;
use crate::hal::devices::heap;
use crate::hal::devices::member::Member;
#[cfg(feature = "profile")]
use crate::hal::devices::recorder::Recorder;

/// A device, opened by [`Instance::device`](crate::Instance::device) or as one of a
/// [`DeviceGroup`]. Cloning gives another handle to the same one.
///
/// Any thread may use it at any time; it lives until the last handle, buffer and session of it
/// (and of the others of its group) is gone.
#[derive(Clone)]
pub struct Device {
    group: DeviceGroup,
    /// Its place in the group.
    index: usize,
}

impl Device {
    /// Device `index` of `group`, which has more.
    pub(crate) fn of(group: &DeviceGroup, index: usize) -> Self {
        Self { group: group.clone(), index }
    }

    fn member(&self) -> &Member {
        &self.group.members()[self.index]
    }

    /// The URI that it was opened with.
    pub fn uri(&self) -> &str {
        &self.member().uri
    }

    /// Worker threads, when the device is `local-task`.
    pub fn threads(&self) -> Option<usize> {
        self.member().threads
    }

    /// Whether buffers of this device are host memory, so that writing and importing are free.
    pub fn is_local(&self) -> bool {
        self.member().uri.starts_with("local-")
    }

    /// Gives back memory that the device keeps for later use.
    ///
    /// # Errors
    /// The device's own.
    pub fn trim(&self) -> Result<()> {
        if self.is_local() {
            heap::trim();
        }
        // SAFETY: the device is live.
        check(unsafe { sys::iree_hal_device_trim(self.raw()) })
    }

    /// The device, for a call on this thread.
    pub(crate) fn raw(&self) -> *mut sys::iree_hal_device_t {
        self.enter();
        self.group.raw_device(self.index)
    }

    /// Readies this thread for calls that touch the device: [`Member::enter`].
    pub(crate) fn enter(&self) {
        self.member().enter();
    }

    /// Where its memory is, when it is of CUDA.
    pub(crate) fn context(&self) -> Option<Context> {
        self.member().context
    }

    /// The group that it was opened in: of itself only, mostly.
    pub fn group(&self) -> &DeviceGroup {
        &self.group
    }

    #[cfg(feature = "profile")]
    pub(crate) fn recorder(&self) -> Option<&Recorder> {
        self.member().recorder.as_ref()
    }

    /// Whether both are in one group, and so live equally long.
    pub(crate) fn same_group(&self, other: &Self) -> bool {
        self.group.raw() == other.group.raw()
    }

    /// The device of this one's group that `buffer`, which is live, was allocated on. Buffers that do not say so are
    /// memory of the host, which programs have made: of this device if it is local, else of the first that is.
    pub(crate) fn holding(&self, buffer: *mut sys::iree_hal_buffer_t) -> Self {
        if self.group.devices().len() == 1 {
            return self.clone();
        }
        // SAFETY: the buffer is live.
        let holder = unsafe { sys::iree_hal_buffer_allocation_placement(buffer) }.device;
        let found = self.group.devices().find(|it| it.group.raw_device(it.index) == holder);
        let local = || self.group.devices().find(Self::is_local).filter(|_| !self.is_local());
        found.or_else(local).unwrap_or_else(|| self.clone())
    }

    pub(crate) fn allocator(&self) -> *mut sys::iree_hal_allocator_t {
        // SAFETY: the device is live and owns its allocator.
        unsafe { sys::iree_hal_device_allocator(self.raw()) }
    }
}

impl DeviceGroup {
    /// Its devices, in order.
    pub fn devices(&self) -> impl ExactSizeIterator<Item = Device> + use<'_> {
        (0..self.members().len()).map(|index| Device::of(self, index))
    }

    /// Device `index`, counted from 0.
    ///
    /// # Errors
    /// [`OutOfRange`](Code::OutOfRange) when there are not as many.
    pub fn device(&self, index: usize) -> Result<Device> {
        let count = self.members().len();
        if index < count {
            return Ok(Device::of(self, index));
        }
        Err(Error::new(Code::OutOfRange, format!("no device {index} in a group of {count}")))
    }
}

impl From<&Device> for DeviceGroup {
    fn from(device: &Device) -> Self {
        device.group().clone()
    }
}

impl fmt::Debug for DeviceGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.devices()).finish()
    }
}

/// Whether both are handles to one device.
impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        self.group.raw_device(self.index) == other.group.raw_device(other.index)
    }
}

impl Eq for Device {}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("uri", &self.member().uri)
            .field("threads", &self.member().threads)
            .finish()
    }
}

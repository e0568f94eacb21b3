//! IREE's own objects behind those of this crate (feature `raw`), for parts of IREE that this crate
//! does not reach.
//!
//! The pointers are valid while the object that gave them, or a clone of it, is. Using them is
//! unsafe, by the rules of IREE's headers; what they point to changes with IREE's version.

use iree_sys as sys;

use crate::calls::session::Session;
use crate::hal::devices::device::Device;
use crate::hal::devices::device_group::DeviceGroup;
use crate::hal::memory::buffer::Buffer;
use crate::hal::memory::buffer_view::BufferView;
use crate::hal::sync::fence::Fence;
use crate::hal::sync::semaphore::Semaphore;
use crate::vm::module::Module;

impl Device {
    /// The HAL device.
    pub fn as_raw(&self) -> *mut sys::iree_hal_device_t {
        self.raw()
    }
}

impl DeviceGroup {
    /// The HAL device group.
    pub fn as_raw(&self) -> *mut sys::iree_hal_device_group_t {
        self.raw()
    }
}

impl Buffer {
    /// The HAL buffer.
    pub fn as_raw(&self) -> *mut sys::iree_hal_buffer_t {
        self.raw()
    }
}

impl BufferView {
    /// The HAL buffer view.
    pub fn as_raw(&self) -> *mut sys::iree_hal_buffer_view_t {
        self.raw()
    }
}

impl Fence {
    /// The HAL fence.
    pub fn as_raw(&self) -> *mut sys::iree_hal_fence_t {
        self.raw()
    }
}

impl Semaphore {
    /// The HAL semaphore.
    pub fn as_raw(&self) -> *mut sys::iree_hal_semaphore_t {
        self.raw()
    }
}

impl Module {
    /// The VM module.
    pub fn as_raw(&self) -> *mut sys::iree_vm_module_t {
        self.raw()
    }
}

impl Session {
    /// The VM context, which one thread uses at a time.
    pub fn as_raw(&mut self) -> *mut sys::iree_vm_context_t {
        self.context()
    }
}

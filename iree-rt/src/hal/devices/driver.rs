//! Drivers and the devices that they offer.

use std::ffi::c_void;
use std::ptr;

use iree_sys as sys;
use iree_sys::allocator::host_allocator;

use crate::base::error::Result;
use crate::base::instance::Instance;
use crate::base::status::check;
use crate::base::text::{entries, text};
use crate::hal::{cuda, vulkan};

/// A driver that the runtime was built with, found by [`Instance::drivers`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DriverInfo {
    /// The name that begins a device URI: `local-task`, `cuda`.
    pub name: String,
    /// What it is, for people.
    pub description: String,
}

/// A device that a driver offers, found by [`DriverInfo::devices`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceInfo {
    /// The URI that opens it.
    pub uri: String,
    /// The driver's path of it (a UUID for GPUs); empty for the only device of a driver.
    pub path: String,
    /// Its name, for people.
    pub name: String,
}

impl DriverInfo {
    /// The devices that the driver finds on this machine now.
    ///
    /// # Errors
    /// The driver's error when it cannot start: `cuda` without NVIDIA's driver, and `vulkan` without
    /// Vulkan, are [`Unavailable`](crate::Code::Unavailable).
    pub fn devices(&self) -> Result<Vec<DeviceInfo>> {
        if self.name == cuda::uri::DRIVER {
            cuda::library()?;
        }
        if self.name == vulkan::DRIVER && cfg!(feature = "vulkan") {
            vulkan::gpu::available()?;
        }
        devices(Instance::get()?, &self.name)
    }
}

impl Instance {
    /// The drivers that the runtime was built with.
    ///
    /// # Errors
    /// When the host has no memory for the list.
    pub fn drivers(&self) -> Result<Vec<DriverInfo>> {
        drivers(self)
    }
}

fn drivers(instance: &Instance) -> Result<Vec<DriverInfo>> {
    let (mut count, mut infos) = (0, ptr::null_mut());
    // SAFETY: the registry is live; the out pointers are valid.
    check(unsafe {
        sys::iree_hal_driver_registry_enumerate(
            instance.registry.as_ptr(),
            host_allocator(),
            &mut count,
            &mut infos,
        )
    })?;
    // SAFETY: IREE returned `count` infos whose strings live as long as the block.
    let drivers = unsafe { entries(infos, count) }
        .iter()
        .map(|info| DriverInfo {
            // SAFETY: as above.
            name: unsafe { text(info.driver_name) },
            // SAFETY: as above.
            description: unsafe { text(info.full_name) },
        })
        .collect();
    // SAFETY: the block was allocated with this allocator and is not used again.
    unsafe { sys::iree_allocator_free(host_allocator(), infos.cast::<c_void>()) };
    Ok(drivers)
}

fn devices(instance: &Instance, driver_name: &str) -> Result<Vec<DeviceInfo>> {
    let mut driver = ptr::null_mut();
    // SAFETY: the registry is live; the out pointer is valid.
    check(unsafe {
        sys::iree_hal_driver_registry_try_create(
            instance.registry.as_ptr(),
            sys::iree_make_string_view(driver_name),
            host_allocator(),
            &mut driver,
        )
    })?;
    let (mut count, mut infos) = (0, ptr::null_mut());
    // SAFETY: the driver is live; the out pointers are valid.
    let status = unsafe {
        sys::iree_hal_driver_query_available_devices(
            driver,
            host_allocator(),
            &mut count,
            &mut infos,
        )
    };
    // SAFETY: ours, and not used again; the infos do not point into it.
    unsafe { sys::iree_hal_driver_release(driver) };
    check(status)?;
    // SAFETY: IREE returned `count` infos whose strings live as long as the block.
    let devices = unsafe { entries(infos, count) }
        .iter()
        .enumerate()
        .map(|(ordinal, info)| {
            // SAFETY: as above.
            let (path, name) = unsafe { (text(info.path), text(info.name)) };
            let uri = match (count, path.is_empty()) {
                (1, true) => driver_name.to_owned(),
                (_, true) => format!("{driver_name}://{ordinal}"),
                (_, false) => format!("{driver_name}://{path}"),
            };
            DeviceInfo { uri, path, name }
        })
        .collect();
    // SAFETY: the block was allocated with this allocator and is not used again.
    unsafe { sys::iree_allocator_free(host_allocator(), infos.cast::<c_void>()) };
    Ok(devices)
}

//! Opening devices, each by the way of its driver.

use std::ptr::{self, NonNull};

use iree_sys as sys;
use iree_sys::allocator::host_allocator;

use crate::base::error::{Code, Error, Result};
use crate::base::exit;
use crate::base::instance::Instance;
use crate::base::proactor_pool::ProactorPool;
use crate::base::status::check;
use crate::hal::devices::device::Device;
use crate::hal::devices::device_group::DeviceGroup;
use crate::hal::devices::device_options::DeviceOptions;
use crate::hal::devices::local_device;
use crate::hal::devices::member::{Member, RawDevice};
use crate::hal::{cuda, vulkan};

impl Instance {
    /// Opens the device that `uri` names, with default [`DeviceOptions`].
    ///
    /// A URI is a driver (`local-task`, `local-sync`, `cuda`), or one of its devices by number
    /// or path (`cuda://0`).
    ///
    /// # Errors
    /// [`NotFound`](crate::Code::NotFound) when there is no such driver (the message lists
    /// those there are); the driver's own error when it has no such device.
    pub fn device(&self, uri: &str) -> Result<Device> {
        self.device_with(uri, &DeviceOptions::default())
    }

    /// Opens the device that `uri` names.
    ///
    /// # Errors
    /// As [`device`](Self::device), and
    /// [`InvalidArgument`](crate::Code::InvalidArgument) for options that the device does not
    /// have.
    pub fn device_with(&self, uri: &str, options: &DeviceOptions) -> Result<Device> {
        let group = DeviceGroup::open(self, &[(uri, options)])?;
        Ok(Device::of(&group, 0))
    }

    /// Opens the devices that `uris` name as a group, for sessions on several of them.
    ///
    /// # Errors
    /// As [`device`](Self::device), and [`InvalidArgument`](crate::Code::InvalidArgument) for no
    /// devices.
    pub fn device_group(&self, uris: &[&str]) -> Result<DeviceGroup> {
        let options = DeviceOptions::default();
        let wanted: Vec<_> = uris.iter().map(|&uri| (uri, &options)).collect();
        DeviceGroup::open(self, &wanted)
    }

    /// As [`device_group`](Self::device_group), with options for each device.
    ///
    /// # Errors
    /// As [`device_group`](Self::device_group) and [`device_with`](Self::device_with).
    pub fn device_group_with(&self, devices: &[(&str, &DeviceOptions)]) -> Result<DeviceGroup> {
        DeviceGroup::open(self, devices)
    }
}

impl DeviceGroup {
    fn open(instance: &Instance, wanted: &[(&str, &DeviceOptions)]) -> Result<Self> {
        if wanted.is_empty() {
            return Err(Error::invalid("a group of no devices: name one or more"));
        }
        // Dropped in reverse order on failure: devices point into what members hold.
        let mut members = Vec::new();
        let mut devices = Vec::new();
        for (uri, options) in wanted {
            let (device, member) = open(instance, uri, options)?;
            devices.push(device);
            members.push(member);
        }
        Self::new(devices, members, wanted.iter().map(|(_, options)| *options))
    }
}

/// A new device, which is in no group yet.
fn open(instance: &Instance, uri: &str, options: &DeviceOptions) -> Result<(RawDevice, Member)> {
    let driver = uri.split_once("://").map_or(uri, |(driver, _)| driver);
    let name = uri.strip_suffix("://").unwrap_or(uri);
    if matches!(driver, "local-task" | "local-sync") && name != driver {
        // IREE's registry would open it, without what this crate does for it.
        return Err(Error::invalid(format!(
            "device `{uri}`: `{driver}` is one device, without a path or parameters"
        )));
    }
    if name != "local-task" && (options.threads.is_some() || options.cpus.is_some()) {
        return Err(Error::invalid(format!(
            "device `{uri}` has no worker threads to set; `local-task` has"
        )));
    }
    if driver != cuda::uri::DRIVER && options.cuda != cuda::options::Options::default() {
        return Err(Error::invalid(format!(
            "device `{uri}` takes no options of CUDA; `cuda` does"
        )));
    }
    let mut threads = None;
    let mut context = None;
    let raw = if name == "local-task" {
        let (raw, workers) = local_device::task(options)?;
        threads = Some(workers);
        raw
    } else if name == "local-sync" {
        local_device::sync(&options.kernels)?
    } else {
        if !options.kernels.is_empty() {
            return Err(Error::invalid(format!(
                "device `{uri}` cannot call Rust kernels; `local-task` and `local-sync` can"
            )));
        }
        if options.profile.is_some() {
            return Err(Error::invalid(format!(
                "device `{uri}` cannot record a profile; `local-task` and `local-sync` can"
            )));
        }
        let raw = if driver == cuda::uri::DRIVER {
            let (raw, its) = cuda::open(uri, &options.cuda)?;
            context = Some(its);
            raw
        } else {
            create(instance, &vulkan::gpu::by_uuid(uri)?)?
        };
        exit::wait_when_exiting();
        raw
    };
    let member = Member::new(uri, threads, context);
    Ok((RawDevice(raw), member))
}

/// Through the driver registry.
fn create(instance: &Instance, uri: &str) -> Result<NonNull<sys::iree_hal_device_t>> {
    let driver = uri.split_once("://").map_or(uri, |(driver, _)| driver);
    let known = instance.drivers()?;
    if !known.iter().any(|info| info.name == driver) {
        let names: Vec<&str> = known.iter().map(|info| info.name.as_str()).collect();
        return Err(Error::new(
            Code::NotFound,
            format!(
                "no driver for device `{uri}`: this runtime has {} (a device is DRIVER, \
                 DRIVER://NUMBER or DRIVER://PATH)",
                names.join(", ")
            ),
        ));
    }
    let pool = ProactorPool::new()?;
    let params =
        sys::iree_hal_device_create_params_t { next: ptr::null(), proactor_pool: pool.raw() };
    let mut device = ptr::null_mut();
    // SAFETY: registry and pool are live, and the device retains what it keeps of them.
    check(unsafe {
        sys::iree_hal_create_device(
            instance.registry.as_ptr(),
            sys::iree_make_string_view(uri),
            &params,
            host_allocator(),
            &mut device,
        )
    })
    .map_err(|e| e.context(format!("opening device `{uri}`")))?;
    Ok(NonNull::new(device).expect("IREE returned OK with a null device"))
}

//! Devices: what runs modules and holds buffers.

use std::fmt;
use std::path::PathBuf;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use iree_sys as sys;
use iree_sys::allocator::host_allocator;

use crate::buffer_view::BufferView;
use crate::element::Element;
use crate::error::{Code, Error, Result};
use crate::instance::Instance;
use crate::kernel::Kernels;
use crate::local_device;
use crate::profile::Recorder;
use crate::status::check;

/// How to open a device; the default suits most programs.
#[derive(Clone, Debug, Default)]
pub struct DeviceOptions {
    /// Worker threads of `local-task`, 1 to 64; `None`: one for each physical core that this
    /// process may use. Other devices take only `None`.
    pub threads: Option<usize>,
    /// Logical CPU numbers to pin the workers of `local-task` to, one worker each, instead of
    /// `threads` workers that the system places.
    pub cpus: Option<Vec<u32>>,
    /// Rust functions that modules on `local-task` or `local-sync` may call. Other devices take
    /// none.
    pub kernels: Kernels,
    /// A file to be made, into which `local-task` or `local-sync` records every dispatch: see
    /// [`Device::take_profile`]. Such a device stays until the process ends, as IREE may look at
    /// its recorder after the last call has returned. Other devices take only `None`.
    pub profile: Option<PathBuf>,
}

/// A device, opened by [`Instance::device`]. Cloning gives another handle to the same one.
///
/// Any thread may use it at any time; it lives until the last handle, buffer and session of it
/// is gone.
#[derive(Clone)]
pub struct Device(Arc<Inner>);

struct Inner {
    raw: NonNull<sys::iree_hal_device_t>,
    /// The topology that the device was put in. One group for the device's whole life: the
    /// device points into it.
    group: NonNull<sys::iree_hal_device_group_t>,
    uri: String,
    threads: Option<usize>,
    /// The device points into them, and they are dropped after `drop` has released it.
    kernels: Kernels,
    recorder: Option<Recorder>,
}

// SAFETY: HAL devices and their allocators are thread-safe (iree/hal/device.h).
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Device {
    pub(crate) fn open(instance: &Instance, uri: &str, options: &DeviceOptions) -> Result<Self> {
        let driver = uri.split_once("://").map_or(uri, |(driver, _)| driver);
        let name = uri.strip_suffix("://").unwrap_or(uri);
        if name != "local-task" && (options.threads.is_some() || options.cpus.is_some()) {
            return Err(Error::invalid(format!(
                "device `{uri}` has no worker threads to set; `local-task` has"
            )));
        }
        let (raw, threads) = if name == "local-task" {
            let (raw, threads) = local_device::task(options)?;
            (raw, Some(threads))
        } else if name == "local-sync" {
            (local_device::sync(&options.kernels)?, None)
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
            let known = instance.drivers()?;
            if !known.iter().any(|info| info.name == driver) {
                let names: Vec<&str> = known.iter().map(|info| info.name.as_str()).collect();
                return Err(Error::new(
                    Code::NotFound,
                    format!(
                        "no driver for device `{uri}`: this runtime has {} (a device is \
                         DRIVER, DRIVER://NUMBER or DRIVER://PATH)",
                        names.join(", ")
                    ),
                ));
            }
            (create(instance, uri).map_err(|e| e.context(format!("opening device `{uri}`")))?, None)
        };
        let group = group_of(raw).inspect_err(|_| {
            // SAFETY: ours, and not used again.
            unsafe { sys::iree_hal_device_release(raw.as_ptr()) };
        })?;
        let mut inner = Inner {
            raw,
            group,
            uri: uri.to_owned(),
            threads,
            kernels: options.kernels.clone(),
            recorder: None,
        };
        if let Some(path) = &options.profile {
            inner.recorder = Some(Recorder::begin(raw, path)?);
        }
        Ok(Self(Arc::new(inner)))
    }

    /// The URI that it was opened with.
    pub fn uri(&self) -> &str {
        &self.0.uri
    }

    /// Worker threads, when the device is `local-task`.
    pub fn threads(&self) -> Option<usize> {
        self.0.threads
    }

    /// Whether buffers of this device are host memory, so that writing and importing are free.
    pub fn is_local(&self) -> bool {
        self.0.uri.starts_with("local-")
    }

    /// A tensor of `shape` holding a copy of `data`: [`BufferView::new`].
    ///
    /// # Errors
    /// As [`BufferView::new`].
    pub fn buffer_view<T: Element>(&self, shape: &[usize], data: &[T]) -> Result<BufferView> {
        BufferView::new(self, shape, data)
    }

    /// Gives back memory that the device keeps for later use.
    ///
    /// # Errors
    /// The device's own.
    pub fn trim(&self) -> Result<()> {
        // SAFETY: the device is live.
        check(unsafe { sys::iree_hal_device_trim(self.raw()) })
    }

    pub(crate) fn raw(&self) -> *mut sys::iree_hal_device_t {
        self.0.raw.as_ptr()
    }

    pub(crate) fn recorder(&self) -> Option<&Recorder> {
        self.0.recorder.as_ref()
    }

    pub(crate) fn group(&self) -> *mut sys::iree_hal_device_group_t {
        self.0.group.as_ptr()
    }

    pub(crate) fn allocator(&self) -> *mut sys::iree_hal_allocator_t {
        // SAFETY: the device is live and owns its allocator.
        unsafe { sys::iree_hal_device_allocator(self.raw()) }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(recorder) = &self.recorder {
            // A recording ends only on an idle device, and no call says that a device is idle:
            // this one stays, with all that it points to.
            recorder.finish(self.raw);
            std::mem::forget(self.kernels.clone());
            return;
        }
        // SAFETY: both are ours and not used again. The device goes first so that whoever still
        // holds the group (a session's HAL module) holds the device through it.
        unsafe {
            sys::iree_hal_device_release(self.raw.as_ptr());
            sys::iree_hal_device_group_release(self.group.as_ptr());
        }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("uri", &self.0.uri)
            .field("threads", &self.0.threads)
            .finish()
    }
}

/// Through the driver registry.
fn create(instance: &Instance, uri: &str) -> Result<NonNull<sys::iree_hal_device_t>> {
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
    })?;
    Ok(NonNull::new(device).expect("IREE returned OK with a null device"))
}

fn group_of(
    device: NonNull<sys::iree_hal_device_t>,
) -> Result<NonNull<sys::iree_hal_device_group_t>> {
    let mut tracker = ptr::null_mut();
    // SAFETY: plain creation into a valid out pointer.
    check(unsafe {
        sys::iree_async_frontier_tracker_create(
            sys::iree_async_frontier_tracker_options_default(),
            host_allocator(),
            &mut tracker,
        )
    })?;
    let mut group = ptr::null_mut();
    // SAFETY: device and tracker are live; the group retains both.
    let status = unsafe {
        sys::iree_hal_device_group_create_from_device(
            device.as_ptr(),
            tracker,
            host_allocator(),
            &mut group,
        )
    };
    // SAFETY: ours, and not used again.
    unsafe { sys::iree_async_frontier_tracker_release(tracker) };
    check(status)?;
    Ok(NonNull::new(group).expect("IREE returned OK with a null device group"))
}

/// The I/O threads that device creation asks for; released when dropped.
pub(crate) struct ProactorPool(NonNull<sys::iree_async_proactor_pool_t>);

impl ProactorPool {
    pub(crate) fn new() -> Result<Self> {
        let mut pool = ptr::null_mut();
        // SAFETY: plain creation into a valid out pointer.
        check(unsafe {
            sys::iree_async_proactor_pool_create(
                sys::iree_numa_node_count(),
                ptr::null(),
                sys::iree_async_proactor_pool_options_default(),
                host_allocator(),
                &mut pool,
            )
        })?;
        Ok(Self(NonNull::new(pool).expect("IREE returned OK with a null proactor pool")))
    }

    pub(crate) fn raw(&self) -> *mut sys::iree_async_proactor_pool_t {
        self.0.as_ptr()
    }
}

impl Drop for ProactorPool {
    fn drop(&mut self) {
        // SAFETY: ours, and not used again.
        unsafe { sys::iree_async_proactor_pool_release(self.raw()) };
    }
}

//! Devices: what runs modules and holds buffers.

use std::fmt;
use std::path::PathBuf;
use std::ptr::{self, NonNull};

use iree_sys as sys;
use iree_sys::allocator::host_allocator;

use crate::buffer_view::BufferView;
use crate::cuda;
use crate::device_group::DeviceGroup;
use crate::element::Element;
use crate::error::{Code, Error, Result};
use crate::heap;
use crate::instance::Instance;
use crate::kernel::Kernels;
use crate::local_device;
use crate::profile::Recorder;
use crate::status::check;

/// How to open a device; the default suits most programs.
///
/// ```
/// # #[cfg(feature = "link")] fn main() -> iree_rt::Result<()> {
/// use iree_rt::{DeviceOptions, Instance};
///
/// let options = DeviceOptions::default().threads(2);
/// let device = Instance::get()?.device_with("local-task", &options)?;
/// assert_eq!(device.buffer_view(&[1], &[7f32])?.read::<f32>()?, [7.]);
/// # Ok(()) }
/// # #[cfg(not(feature = "link"))] fn main() {}
/// ```
#[derive(Clone, Debug, Default)]
pub struct DeviceOptions {
    pub(crate) threads: Option<usize>,
    pub(crate) cpus: Option<Vec<u32>>,
    pub(crate) kernels: Kernels,
    pub(crate) profile: Option<PathBuf>,
    pub(crate) cuda: cuda::Options,
    pub(crate) allow_racy_runtime: bool,
}

impl DeviceOptions {
    /// Worker threads of `local-task`, 1 to 64; `None` (the default) is one for each physical core
    /// that this process may use. Other devices take only `None`.
    pub fn threads(mut self, threads: impl Into<Option<usize>>) -> Self {
        self.threads = threads.into();
        self
    }

    /// Logical CPU numbers to pin the workers of `local-task` to, one worker each, instead of
    /// `threads` workers that the system places.
    pub fn cpus(mut self, cpus: impl Into<Option<Vec<u32>>>) -> Self {
        self.cpus = cpus.into();
        self
    }

    /// Rust functions that modules on `local-task` or `local-sync` may call. Other devices take
    /// none.
    pub fn kernels(mut self, kernels: Kernels) -> Self {
        self.kernels = kernels;
        self
    }

    /// A file to be made, into which `local-task` or `local-sync` records every dispatch: see
    /// [`Device::take_profile`]. Such a device stays until the process ends, as IREE may look at
    /// its recorder after the last call has returned. Other devices take only `None`.
    pub fn profile(mut self, file: impl Into<Option<PathBuf>>) -> Self {
        self.profile = file.into();
        self
    }

    /// Opens `local-task` on a runtime in which it has a known race, too.
    ///
    /// IREE 3.13 reads an operation of the task queue that its workers may be done with and have
    /// freed. `cargo xtask fetch-iree` and the feature `bundled` mend that before they build the
    /// runtime; upstream's archive and a checkout of one's own have it, and `local-task` is refused
    /// there, for it corrupts memory. `local-sync` has no queue, and is not.
    ///
    /// # Safety
    /// The runtime has been mended in another way, or whoever runs the program accepts that
    /// submitting work to the device may read freed memory.
    pub unsafe fn allow_racy_runtime(mut self) -> Self {
        self.allow_racy_runtime = true;
        self
    }

    /// How a device of CUDA works. Other devices take only the default.
    pub fn cuda(mut self, options: cuda::Options) -> Self {
        self.cuda = options;
        self
    }
}

/// A device, opened by [`Instance::device`] or as one of a [`DeviceGroup`]. Cloning gives another
/// handle to the same one.
///
/// Any thread may use it at any time; it lives until the last handle, buffer and session of it
/// (and of the others of its group) is gone.
#[derive(Clone)]
pub struct Device {
    group: DeviceGroup,
    /// Its place in the group.
    index: usize,
}

/// A new device that is in no group yet.
pub(crate) struct Opened {
    pub(crate) raw: RawDevice,
    pub(crate) member: Member,
}

/// What this crate knows of a device.
pub(crate) struct Member {
    uri: String,
    threads: Option<usize>,
    /// Kept because the device points into them.
    _kernels: Kernels,
    recorder: Option<Recorder>,
    /// Where its memory is, when it is of CUDA.
    context: Option<cuda::Context>,
}

/// A reference to a HAL device.
pub(crate) struct RawDevice(pub(crate) NonNull<sys::iree_hal_device_t>);

impl Drop for RawDevice {
    fn drop(&mut self) {
        // SAFETY: a reference of ours, not used again.
        unsafe { sys::iree_hal_device_release(self.0.as_ptr()) };
    }
}

impl Opened {
    pub(crate) fn new(instance: &Instance, uri: &str, options: &DeviceOptions) -> Result<Self> {
        let driver = uri.split_once("://").map_or(uri, |(driver, _)| driver);
        let name = uri.strip_suffix("://").unwrap_or(uri);
        if name != "local-task" && (options.threads.is_some() || options.cpus.is_some()) {
            return Err(Error::invalid(format!(
                "device `{uri}` has no worker threads to set; `local-task` has"
            )));
        }
        if driver != cuda::DRIVER && options.cuda != cuda::Options::default() {
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
            if driver == cuda::DRIVER {
                let (raw, its) = cuda::open(uri, &options.cuda)?;
                context = Some(its);
                raw
            } else {
                create(instance, uri)?
            }
        };
        let kernels = options.kernels.clone();
        let member =
            Member { uri: uri.to_owned(), threads, _kernels: kernels, recorder: None, context };
        Ok(Self { raw: RawDevice(raw), member })
    }
}

impl Member {
    /// What a thread has to do before it calls anything of IREE that touches the device.
    pub(crate) fn enter(&self) {
        if let Some(context) = &self.context {
            context.enter();
        }
    }

    /// Begins what the options ask for on a device that is in its group.
    pub(crate) fn begin(&mut self, raw: &RawDevice, options: &DeviceOptions) -> Result<()> {
        if let Some(path) = &options.profile {
            self.recorder = Some(Recorder::begin(raw.0, path)?);
        }
        Ok(())
    }

    /// Ends a recording, and whether there was one.
    pub(crate) fn finish(&self, raw: &RawDevice) -> bool {
        if let Some(recorder) = &self.recorder {
            recorder.finish(raw.0);
        }
        self.recorder.is_some()
    }
}

impl Device {
    pub(crate) fn open(instance: &Instance, uri: &str, options: &DeviceOptions) -> Result<Self> {
        let group = DeviceGroup::open(instance, &[(uri, options)])?;
        Ok(Self { group, index: 0 })
    }

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
    pub(crate) fn context(&self) -> Option<cuda::Context> {
        self.member().context
    }

    /// The group that it was opened in: of itself only, mostly.
    pub fn group(&self) -> &DeviceGroup {
        &self.group
    }

    pub(crate) fn recorder(&self) -> Option<&Recorder> {
        self.member().recorder.as_ref()
    }

    /// Whether both are in one group, and so live equally long.
    pub(crate) fn same_group(&self, other: &Self) -> bool {
        self.group.raw() == other.group.raw()
    }

    /// The device of this one's group that `buffer`, which is live, was allocated on; this one
    /// when the buffer does not say.
    pub(crate) fn holding(&self, buffer: *mut sys::iree_hal_buffer_t) -> Self {
        if self.group.devices().len() == 1 {
            return self.clone();
        }
        // SAFETY: the buffer is live.
        let holder = unsafe { sys::iree_hal_buffer_allocation_placement(buffer) }.device;
        let found = self.group.devices().find(|it| it.group.raw_device(it.index) == holder);
        found.unwrap_or_else(|| self.clone())
    }

    pub(crate) fn allocator(&self) -> *mut sys::iree_hal_allocator_t {
        // SAFETY: the device is live and owns its allocator.
        unsafe { sys::iree_hal_device_allocator(self.raw()) }
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

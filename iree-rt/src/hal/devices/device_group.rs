//! Groups: devices that work together.

use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use iree_sys as sys;
use iree_sys::allocator::host_allocator;

use crate::base::callback;
use crate::base::error::Result;
use crate::base::status::check;
use crate::hal::devices::device_options::DeviceOptions;
use crate::hal::devices::member::{Member, RawDevice};

/// Devices of one session, opened together by
/// [`Instance::device_group`](crate::Instance::device_group). Cloning gives another handle to the
/// same ones.
///
/// A module that was compiled for several devices (one `--iree-hal-target-device=name=local[0]`
/// flag for each) finds them by their order in the group. All of them live until the last handle,
/// buffer and session of any of them is gone.
///
/// ```
/// # #[cfg(all(feature = "link", feature = "compiler"))] fn main() -> iree_rt::Result<()> {
/// use iree_rt::{CompileOptions, Compiler, Instance, Module, Session};
///
/// let source = "module @split {
///   func.func @f(%a: tensor<2xf32> {iree.abi.affinity = #hal.device.promise<@left>},
///                %b: tensor<2xf32> {iree.abi.affinity = #hal.device.promise<@right>})
///       -> (tensor<2xf32> {iree.abi.affinity = #hal.device.promise<@right>}) {
///     %double = stablehlo.add %a, %a : tensor<2xf32>
///     %there = flow.tensor.transfer %double : tensor<2xf32> to #hal.device.promise<@right>
///     %sum = stablehlo.add %there, %b : tensor<2xf32>
///     return %sum : tensor<2xf32>
///   }
/// }";
/// let options = CompileOptions::empty()
///     .flag("--iree-hal-target-device=left=local[0]")
///     .flag("--iree-hal-target-device=right=local[1]")
///     .flag("--iree-hal-local-target-device-backends=llvm-cpu")
///     .flag("--iree-llvmcpu-target-cpu=host");
/// let vmfb = Compiler::find()?.compile(source, &options)?;
/// let group = Instance::get()?.device_group(&["local-sync", "local-task"])?;
/// let (left, right) = (group.device(0)?, group.device(1)?);
/// // SAFETY: compiled just now for the CPU of this machine.
/// let module = unsafe { Module::from_bytes(&vmfb)? };
/// let mut session = Session::builder(&group).module(module).build()?;
/// let f = session.function("split.f")?;
/// let (a, b) = (left.buffer_view(&[2], &[1f32, 2.])?, right.buffer_view(&[2], &[10f32, 20.])?);
/// let sum = session.call(&f, (a, b))?.view(0)?;
/// assert_eq!(sum.read::<f32>()?, [12., 24.]);
/// assert_eq!(sum.device().uri(), "local-task");
/// # Ok(()) }
/// # #[cfg(not(all(feature = "link", feature = "compiler")))] fn main() {}
/// ```
#[derive(Clone)]
pub struct DeviceGroup(Arc<Inner>);

/// Dropped where waiting for the devices is no deadlock.
struct Inner(ManuallyDrop<Parts>);

/// In the order of dropping: the group holds the devices until it goes too, and only then may go
/// what they point to.
struct Parts {
    devices: Vec<RawDevice>,
    group: RawGroup,
    members: Vec<Member>,
}

/// A reference to a HAL device group.
struct RawGroup(NonNull<sys::iree_hal_device_group_t>);

// SAFETY: HAL devices, their allocators (iree/hal/device.h) and groups (iree/hal/device_group.h)
// are thread-safe; those of CUDA and Vulkan with what is mended in them (`iree_src::mend`: they count
// their memory without a lock).
unsafe impl Send for Parts {}
// SAFETY: as above.
unsafe impl Sync for Parts {}

impl DeviceGroup {
    /// A group of new devices, each opened with its options.
    pub(crate) fn new<'a>(
        devices: Vec<RawDevice>,
        members: Vec<Member>,
        options: impl IntoIterator<Item = &'a DeviceOptions>,
    ) -> Result<Self> {
        let group = RawGroup::new(&devices)?;
        let mut parts = Parts { devices, group, members };
        for ((member, raw), options) in parts.members.iter_mut().zip(&parts.devices).zip(options) {
            member.begin(raw, options)?;
        }
        Ok(Self(Arc::new(Inner(ManuallyDrop::new(parts)))))
    }

    pub(crate) fn raw(&self) -> *mut sys::iree_hal_device_group_t {
        self.0.0.group.0.as_ptr()
    }

    /// Readies this thread for calls that touch the devices. Of several GPUs it is the first: the
    /// others IREE reaches on its own threads.
    pub(crate) fn enter(&self) {
        self.members().iter().rev().for_each(Member::enter);
    }

    pub(crate) fn members(&self) -> &[Member] {
        &self.0.0.members
    }

    pub(crate) fn raw_device(&self, index: usize) -> *mut sys::iree_hal_device_t {
        self.0.0.devices[index].0.as_ptr()
    }
}

/// Readies the thread that drops it for the release of memory of the group: the field before those
/// that may hold the last references to buffers, which IREE releases by itself.
pub(crate) struct EnterOnDrop(DeviceGroup);

impl EnterOnDrop {
    pub(crate) fn new(group: &DeviceGroup) -> Self {
        Self(group.clone())
    }
}

impl Drop for EnterOnDrop {
    fn drop(&mut self) {
        self.0.enter();
    }
}

impl From<&Self> for DeviceGroup {
    fn from(group: &Self) -> Self {
        group.clone()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: not used again.
        let parts = unsafe { ManuallyDrop::take(&mut self.0) };
        callback::release(move || parts.release());
    }
}

impl Parts {
    fn release(self) {
        self.members.iter().for_each(Member::enter);
        // A recording ends only on an idle device, and no call says that a device is idle: such
        // devices stay, with all that they point to.
        let finish = |(member, raw): (&Member, &RawDevice)| member.finish(raw);
        let recorded = self.members.iter().zip(&self.devices).filter(|&pair| finish(pair)).count();
        if recorded > 0 {
            std::mem::forget(self);
        }
    }
}

impl RawGroup {
    /// One group for the devices' whole lives: they point into it.
    fn new(devices: &[RawDevice]) -> Result<Self> {
        let mut tracker = ptr::null_mut();
        // SAFETY: plain creation into a valid out pointer.
        check(unsafe {
            sys::iree_async_frontier_tracker_create(
                sys::iree_async_frontier_tracker_options_default(),
                host_allocator(),
                &mut tracker,
            )
        })?;
        let mut builder = sys::iree_hal_device_group_builder_t::default();
        let mut group = ptr::null_mut();
        // SAFETY: tracker and devices are live; the builder retains the tracker, and the group
        // that it becomes the devices. A finished builder may be deinitialized once more.
        let status = unsafe {
            sys::iree_hal_device_group_builder_initialize(&mut builder, tracker);
            sys::iree_async_frontier_tracker_release(tracker);
            let added = devices.iter().try_for_each(|device| {
                check(sys::iree_hal_device_group_builder_add_device(
                    &mut builder,
                    device.0.as_ptr(),
                ))
            });
            let made = added.and_then(|()| {
                check(sys::iree_hal_device_group_builder_finalize(
                    &mut builder,
                    host_allocator(),
                    &mut group,
                ))
            });
            sys::iree_hal_device_group_builder_deinitialize(&mut builder);
            made
        };
        status?;
        Ok(Self(NonNull::new(group).expect("IREE returned OK with a null device group")))
    }
}

impl Drop for RawGroup {
    fn drop(&mut self) {
        // SAFETY: a reference of ours, not used again.
        unsafe { sys::iree_hal_device_group_release(self.0.as_ptr()) };
    }
}

//! The process's IREE: VM types, drivers.

use std::ptr::{self, NonNull};
use std::sync::{Mutex, OnceLock, PoisonError};

use iree_sys as sys;
use iree_sys::allocator::host_allocator;

use crate::base::error::Result;
use crate::base::object::register_object;
use crate::base::status::check;

static INSTANCE: OnceLock<Instance> = OnceLock::new();
static INITIALIZING: Mutex<()> = Mutex::new(());

/// The IREE runtime of this process: made on first use, kept until the process ends.
///
/// There is one because IREE registers VM types in process-global variables. Any thread may use
/// it at any time.
///
/// ```
/// # #[cfg(feature = "link")] fn main() -> iree_rt::Result<()> {
/// use iree_rt::{DeviceOptions, Instance};
///
/// let instance = Instance::get()?;
/// for driver in instance.drivers()? {
///     println!("{}: {} devices", driver.name, driver.devices().map_or(0, |found| found.len()));
/// }
/// let options = DeviceOptions::default().threads(2);
/// let device = instance.device_with("local-task", &options)?;
/// assert_eq!((device.uri(), device.threads()), ("local-task", Some(2)));
/// # Ok(()) }
/// # #[cfg(not(feature = "link"))] fn main() {}
/// ```
#[derive(Debug)]
pub struct Instance {
    pub(crate) vm: NonNull<sys::iree_vm_instance_t>,
    pub(crate) registry: NonNull<sys::iree_hal_driver_registry_t>,
    /// The type of references to Rust values.
    pub(crate) object_type: sys::iree_vm_ref_type_t,
}

// SAFETY: VM instance and driver registry guard their state with their own locks.
unsafe impl Send for Instance {}
// SAFETY: as above.
unsafe impl Sync for Instance {}

impl Instance {
    /// The instance of this process, with every driver registered that the runtime was built
    /// with.
    ///
    /// # Errors
    /// When the host has no memory for it; a later call tries again.
    pub fn get() -> Result<&'static Self> {
        if let Some(instance) = INSTANCE.get() {
            return Ok(instance);
        }
        let _one_at_a_time = INITIALIZING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(instance) = INSTANCE.get() {
            return Ok(instance);
        }
        let made = Self::new()?;
        Ok(INSTANCE.get_or_init(|| made))
    }

    fn new() -> Result<Self> {
        let (vm, object_type) = create_vm_instance()?;
        create_registry().map(|registry| Self { vm, registry, object_type }).inspect_err(|_| {
            // SAFETY: ours, and not used again.
            unsafe { sys::iree_vm_instance_release(vm.as_ptr()) };
        })
    }
}

fn create_vm_instance() -> Result<(NonNull<sys::iree_vm_instance_t>, sys::iree_vm_ref_type_t)> {
    let mut vm = ptr::null_mut();
    // SAFETY: plain creation into a valid out pointer.
    check(unsafe {
        sys::iree_vm_instance_create(
            sys::IREE_VM_TYPE_CAPACITY_DEFAULT as usize,
            host_allocator(),
            &mut vm,
        )
    })?;
    // SAFETY: `vm` is a live instance; INITIALIZING keeps other registrations away.
    let registered = check(unsafe { sys::iree_hal_module_register_all_types(vm) });
    // SAFETY: as above.
    let registered = registered.and_then(|()| unsafe { register_object(vm) });
    let object_type = registered.inspect_err(|_| {
        // SAFETY: ours, and not used again.
        unsafe { sys::iree_vm_instance_release(vm) };
    })?;
    let vm = NonNull::new(vm).expect("IREE returned OK with a null VM instance");
    Ok((vm, object_type))
}

fn create_registry() -> Result<NonNull<sys::iree_hal_driver_registry_t>> {
    let mut registry = ptr::null_mut();
    // SAFETY: plain creation into a valid out pointer.
    check(unsafe { sys::iree_hal_driver_registry_allocate(host_allocator(), &mut registry) })?;
    // SAFETY: `registry` is a live registry.
    let registered = check(unsafe { sys::iree_hal_register_all_available_drivers(registry) });
    if let Err(error) = registered {
        // SAFETY: ours, and not used again.
        unsafe { sys::iree_hal_driver_registry_free(registry) };
        return Err(error);
    }
    Ok(NonNull::new(registry).expect("IREE returned OK with a null registry"))
}

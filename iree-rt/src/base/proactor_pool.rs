//! The I/O threads of devices.

use std::ptr::{self, NonNull};

use iree_sys as sys;
use iree_sys::allocator::host_allocator;

use crate::base::error::Result;
use crate::base::status::check;

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

//! Waiting for queue operations.

use std::ptr::{self, NonNull};

use iree_sys as sys;

use crate::device::Device;
use crate::error::Result;
use crate::status::check;

/// A timeline semaphore at 0 that one queue operation takes to 1.
pub(crate) struct Semaphore(NonNull<sys::iree_hal_semaphore_t>);

impl Semaphore {
    pub(crate) fn new(device: &Device) -> Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: the device is live.
        check(unsafe {
            sys::iree_hal_semaphore_create(
                device.raw(),
                u64::MAX, // IREE_HAL_QUEUE_AFFINITY_ANY
                0,
                0,
                &mut raw,
            )
        })?;
        Ok(Self(NonNull::new(raw).expect("IREE returned OK with a null semaphore")))
    }

    /// Submits an operation that signals the list it is given, and waits for it.
    pub(crate) fn run(
        self,
        submit: impl FnOnce(sys::iree_hal_semaphore_list_t) -> sys::iree_status_t,
    ) -> Result<()> {
        let mut semaphores = [self.0.as_ptr()];
        let mut values = [1u64];
        check(submit(sys::iree_hal_semaphore_list_t {
            count: 1,
            semaphores: semaphores.as_mut_ptr(),
            payload_values: values.as_mut_ptr(),
        }))?;
        // SAFETY: the semaphore is live.
        check(unsafe {
            sys::iree_hal_semaphore_wait(self.0.as_ptr(), 1, sys::iree_infinite_timeout(), 0)
        })
    }
}

impl Drop for Semaphore {
    fn drop(&mut self) {
        // SAFETY: a reference of ours, not used again.
        unsafe { sys::iree_hal_semaphore_release(self.0.as_ptr()) };
    }
}

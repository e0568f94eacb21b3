//! Timelines: HAL semaphores, as those above use them.

use std::ptr::{self, NonNull};
use std::time::Duration;

use iree_sys as sys;

use crate::base::error::{Code, Error, Result};
use crate::base::status::{check, into_status};
use crate::hal::devices::device::Device;
use crate::hal::sync::fence::{self, Fence};

/// A HAL semaphore; values are below 2³¹.
pub(crate) struct Timeline {
    raw: NonNull<sys::iree_hal_semaphore_t>,
    /// Dropped after `drop` has released the semaphore. Also keeps the device while the host may
    /// still signal: it waits for all of its work when it is dropped.
    device: Device,
}

// SAFETY: HAL semaphores are reference-counted atomically and guard their state.
unsafe impl Send for Timeline {}
// SAFETY: as above.
unsafe impl Sync for Timeline {}

impl Timeline {
    pub(crate) fn new(device: &Device, value: u64) -> Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: the device is live.
        check(unsafe {
            sys::iree_hal_semaphore_create(
                device.raw(),
                u64::MAX, // IREE_HAL_QUEUE_AFFINITY_ANY
                value,
                u64::from(sys::IREE_HAL_SEMAPHORE_FLAG_HOST_INTERRUPT),
                &mut raw,
            )
        })?;
        let raw = NonNull::new(raw).expect("IREE returned OK with a null semaphore");
        Ok(Self { raw, device: device.clone() })
    }

    pub(crate) fn value(&self) -> Result<u64> {
        let mut value = 0;
        // SAFETY: the semaphore is live.
        check(unsafe { sys::iree_hal_semaphore_query(self.raw(), &mut value) })?;
        Ok(value)
    }

    pub(crate) fn signal(&self, value: u64) -> Result<()> {
        // SAFETY: the semaphore is live; a null frontier is none.
        check(unsafe { sys::iree_hal_semaphore_signal(self.raw(), value, ptr::null()) })
    }

    pub(crate) fn fail(&self, error: &Error) {
        // SAFETY: the semaphore is live and takes the status over.
        unsafe { sys::iree_hal_semaphore_fail(self.raw(), into_status(error)) };
    }

    pub(crate) fn wait(&self, value: u64, timeout: Option<Duration>) -> Result<()> {
        // SAFETY: the semaphore is live.
        let waited = check(unsafe {
            sys::iree_hal_semaphore_wait(self.raw(), value, fence::timeout(timeout), 0)
        });
        // A wait tells the code of a failure only.
        waited.map_err(|error| match (self.value(), timeout) {
            (Err(failure), _) => failure,
            (Ok(_), Some(timeout)) if error.code() == Code::DeadlineExceeded => Error::new(
                Code::DeadlineExceeded,
                format!("a semaphore did not reach {value} in {timeout:?}"),
            ),
            _ => error,
        })
    }

    pub(crate) fn fence(&self, value: u64) -> Result<Fence> {
        Fence::at(self.raw.as_ptr(), value, &self.device)
    }

    pub(crate) fn raw(&self) -> *mut sys::iree_hal_semaphore_t {
        self.raw.as_ptr()
    }

    /// Submits an operation that signals the list it is given, which takes this from 0 to 1, and
    /// waits for it.
    pub(crate) fn run(
        self,
        submit: impl FnOnce(sys::iree_hal_semaphore_list_t) -> sys::iree_status_t,
    ) -> Result<()> {
        let mut semaphores = [self.raw()];
        let mut values = [1u64];
        check(submit(sys::iree_hal_semaphore_list_t {
            count: 1,
            semaphores: semaphores.as_mut_ptr(),
            payload_values: values.as_mut_ptr(),
        }))?;
        self.wait(1, None)
    }
}

impl Drop for Timeline {
    fn drop(&mut self) {
        // SAFETY: a reference of ours, not used again.
        unsafe { sys::iree_hal_semaphore_release(self.raw()) };
    }
}

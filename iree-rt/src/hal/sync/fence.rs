//! Fences: points in time that work waits for and reaches.

use std::fmt;
use std::ptr::{self, NonNull};
use std::time::Duration;

use iree_sys as sys;
use iree_sys::allocator::host_allocator;

use crate::base::error::{Code, Error, Result};
use crate::base::status::{check, into_status};
use crate::hal::devices::device::Device;

/// A point in time: when certain work is done, or the host says so.
///
/// It is reached once and stays reached, or fails; one of a [`Semaphore`](crate::Semaphore) fails with that even when it
/// was reached. `await` it (on any executor; no thread waits),
/// or [`wait`](Self::wait) for it. Cloning gives another handle to the same one; any thread may
/// use it at any time.
///
/// ```
/// # #[cfg(feature = "link")] fn main() -> iree_rt::Result<()> {
/// use iree_rt::{Code, Error, Fence, Instance};
///
/// let device = Instance::get()?.device("local-task")?;
/// let (signal, ready) = Fence::new(&device)?;
/// let (failure, never) = Fence::new(&device)?;
/// signal.signal()?;
/// failure.fail(&Error::new(Code::Aborted, "the user changed their mind"));
/// pollster::block_on(async {
///     ready.await?;
///     assert_eq!(never.await.unwrap_err().code(), Code::Aborted);
///     Ok(())
/// })
/// # }
/// # #[cfg(not(feature = "link"))] fn main() {}
/// ```
pub struct Fence {
    raw: NonNull<sys::iree_hal_fence_t>,
    /// Dropped after `drop` has released the fence.
    device: Device,
}

// SAFETY: HAL fences are reference-counted atomically and do not change once they are made;
// their semaphores guard their own state.
unsafe impl Send for Fence {}
// SAFETY: as above.
unsafe impl Sync for Fence {}

impl Fence {
    /// The fence that is reached when all of `fences` are, and fails when one does. With none, it
    /// is reached already.
    ///
    /// # Errors
    /// [`InvalidArgument`](Code::InvalidArgument) for a fence of another device (not of the same
    /// [`DeviceGroup`](crate::DeviceGroup)); when memory runs out.
    pub fn join<'a>(device: &Device, fences: impl IntoIterator<Item = &'a Self>) -> Result<Self> {
        let fences: Vec<&Self> = fences.into_iter().collect();
        if fences.iter().any(|fence| !fence.device.same_group(device)) {
            return Err(Error::invalid(
                "cannot join fences of devices that were opened separately",
            ));
        }
        let capacity = fences.iter().map(|fence| fence.points().len()).sum();
        let joined = Self::with_capacity(device, capacity)?;
        for fence in fences {
            // SAFETY: both fences are live, and nobody else knows the new one.
            check(unsafe { sys::iree_hal_fence_extend(joined.raw(), fence.raw()) })?;
        }
        Ok(joined)
    }

    /// The fence that is reached when `semaphore`, which is live, reaches `value`.
    pub(crate) fn at(
        semaphore: *mut sys::iree_hal_semaphore_t,
        value: u64,
        device: &Device,
    ) -> Result<Self> {
        let fence = Self::with_capacity(device, 1)?;
        // SAFETY: fence and semaphore are live; the fence retains the semaphore.
        check(unsafe { sys::iree_hal_fence_insert(fence.raw(), semaphore, value) })?;
        Ok(fence)
    }

    /// Another reference to a fence that something else holds.
    ///
    /// # Safety
    /// `raw` is a live fence for work of `device`.
    pub(crate) unsafe fn retain(raw: *mut sys::iree_hal_fence_t, device: &Device) -> Self {
        // SAFETY: by the contract of this function.
        unsafe { sys::iree_hal_fence_retain(raw) };
        let raw = NonNull::new(raw).expect("a live fence is not null");
        Self { raw, device: device.clone() }
    }

    fn with_capacity(device: &Device, capacity: usize) -> Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: plain creation into a valid out pointer.
        check(unsafe { sys::iree_hal_fence_create(capacity, host_allocator(), &mut raw) })?;
        let raw = NonNull::new(raw).expect("IREE returned OK with a null fence");
        Ok(Self { raw, device: device.clone() })
    }

    /// Whether it is reached.
    ///
    /// # Errors
    /// What it failed with.
    pub fn is_reached(&self) -> Result<bool> {
        let mut reached = true;
        for (semaphore, wanted) in self.points() {
            let mut value = 0;
            // SAFETY: the fence holds its semaphores.
            check(unsafe { sys::iree_hal_semaphore_query(semaphore, &mut value) })?;
            reached &= value >= wanted;
        }
        Ok(reached)
    }

    /// Its semaphores and the values that they have to reach. (`iree_hal_fence_query` looks at
    /// no failure behind a semaphore that is not there yet.)
    pub(crate) fn points(
        &self,
    ) -> impl ExactSizeIterator<Item = (*mut sys::iree_hal_semaphore_t, u64)> + use<'_> {
        // SAFETY: the fence is live.
        let list = unsafe { sys::iree_hal_fence_semaphore_list(self.raw()) };
        (0..list.count).map(move |index| {
            // SAFETY: both arrays have `count` entries, and do not change while the fence lives.
            unsafe { (*list.semaphores.add(index), *list.payload_values.add(index)) }
        })
    }

    /// Waits until it is reached; without a timeout, for as long as that takes.
    ///
    /// # Errors
    /// [`DeadlineExceeded`](Code::DeadlineExceeded) when the time is over; what it failed with.
    pub fn wait(&self, limit: Option<Duration>) -> Result<()> {
        // SAFETY: the fence is live.
        let waited = check(unsafe { sys::iree_hal_fence_wait(self.raw(), timeout(limit), 0) });
        // A wait tells the code of a failure only.
        waited.map_err(|error| match (self.is_reached(), limit) {
            (Err(failure), _) => failure,
            (Ok(_), Some(limit)) if error.code() == Code::DeadlineExceeded => {
                Error::new(Code::DeadlineExceeded, format!("a fence was not reached in {limit:?}"))
            }
            _ => error,
        })
    }

    /// Reaches or fails it, as `outcome` says; it is the caller's to do so.
    pub(crate) fn settle(&self, outcome: &Result<()>) {
        let fail = |error: &Error| {
            // SAFETY: the fence is live and takes the status over.
            unsafe { sys::iree_hal_fence_fail(self.raw(), into_status(error)) };
        };
        match outcome {
            // SAFETY: the fence is live.
            Ok(()) => check(unsafe { sys::iree_hal_fence_signal(self.raw()) })
                .unwrap_or_else(|error| fail(&error)),
            Err(error) => fail(error),
        }
    }

    /// The device whose work it is for.
    pub fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn raw(&self) -> *mut sys::iree_hal_fence_t {
        self.raw.as_ptr()
    }
}

impl Clone for Fence {
    fn clone(&self) -> Self {
        // SAFETY: the fence is live and of this device.
        unsafe { Self::retain(self.raw(), &self.device) }
    }
}

impl Drop for Fence {
    fn drop(&mut self) {
        // SAFETY: a reference of ours, not used again.
        unsafe { sys::iree_hal_fence_release(self.raw()) };
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Fence").field(&self.is_reached()).finish()
    }
}

/// IREE's form of a time to wait, from the moment that it is asked to.
pub(crate) fn timeout(limit: Option<Duration>) -> sys::iree_timeout_t {
    // IREE adds the time that it is, which must not overflow: what is longer than a century is forever.
    let longest = i64::MAX as u128 / 2;
    let nanos = limit.map(|limit| limit.as_nanos()).filter(|nanos| *nanos <= longest);
    let nanos = nanos.map(|nanos| nanos as i64);
    nanos.map_or_else(sys::iree_infinite_timeout, sys::iree_make_timeout_ns)
}

//! Timepoints: IREE calls back when a semaphore reaches a value, or fails.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use iree_sys as sys;

use crate::base::callback::catch_quietly;
use crate::base::error::Result;
use crate::base::status::check;
use crate::hal::sync::fence::Fence;

type Callback = Box<dyn FnOnce() + Send>;

/// A callback that IREE was asked for; asked back when dropped.
pub(crate) struct Timepoint {
    semaphore: NonNull<sys::iree_hal_semaphore_t>,
    registered: Arc<Registered>,
}

// SAFETY: semaphores guard their lists of timepoints, and outlive this.
unsafe impl Send for Timepoint {}

/// What IREE and the [`Timepoint`] share. IREE links `raw` into a list of the semaphore until it
/// calls back or is asked back; for that time one strong reference is held for it.
struct Registered {
    raw: UnsafeCell<sys::iree_async_semaphore_timepoint_t>,
    callback: Mutex<Option<Callback>>,
}

// SAFETY: `raw` is IREE's from registration on: Rust only passes its address.
unsafe impl Send for Registered {}
// SAFETY: as above.
unsafe impl Sync for Registered {}

impl Timepoint {
    /// Asks for a callback at every point of `fence`. It may come before this returns, on this
    /// thread, and does come when a semaphore fails.
    ///
    /// # Safety
    /// The fence (or a clone) outlives the timepoints, or all of them are detached.
    pub(crate) unsafe fn all<C: FnOnce() + Send + 'static>(
        fence: &Fence,
        mut callback: impl FnMut() -> C,
    ) -> Result<Vec<Self>> {
        // SAFETY: the fence holds its semaphores.
        let new = |(raw, value)| unsafe { Self::new(raw, value, Box::new(callback())) };
        fence.points().map(new).collect()
    }

    /// # Safety
    /// The semaphore is live and outlives the timepoint, or it is detached.
    unsafe fn new(
        semaphore: *mut sys::iree_hal_semaphore_t,
        value: u64,
        callback: Callback,
    ) -> Result<Self> {
        let raw = sys::iree_async_semaphore_timepoint_t {
            callback: Some(resolved),
            ..Default::default()
        };
        let callback = Mutex::new(Some(callback));
        let registered = Arc::new(Registered { raw: raw.into(), callback });
        let held = Arc::into_raw(registered.clone());
        // SAFETY: HAL semaphores begin with an async semaphore (iree/hal/semaphore.h), and this
        // one is live; the timepoint stays in place while the reference in `held` does.
        let acquired = check(unsafe {
            (*registered.raw.get()).user_data = held.cast_mut().cast();
            sys::iree_async_semaphore_acquire_timepoint(
                semaphore.cast(),
                value,
                registered.raw.get(),
            )
        });
        if let Err(error) = acquired {
            // SAFETY: a failed registration does not call back.
            drop(unsafe { Arc::from_raw(held) });
            return Err(error);
        }
        let semaphore = NonNull::new(semaphore).expect("fences hold no null semaphore");
        Ok(Self { semaphore, registered })
    }

    /// Lets the callback come, whenever that is.
    pub(crate) fn detach(self) {
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: not used again, and not dropped.
        drop(unsafe { std::ptr::read(&this.registered) });
    }
}

impl Drop for Timepoint {
    fn drop(&mut self) {
        // SAFETY: the semaphore is live (by the contract of `new`). One that is no longer
        // registered is found in no list, as its address is still taken.
        let asked_back = unsafe {
            sys::iree_async_semaphore_cancel_timepoint(
                self.semaphore.as_ptr().cast(),
                self.registered.raw.get(),
            )
        };
        if asked_back {
            // SAFETY: the callback will not come; this is the reference that was held for it.
            drop(unsafe { Arc::from_raw(Arc::as_ptr(&self.registered)) });
        }
    }
}

unsafe extern "C" fn resolved(
    registered: *mut c_void,
    _timepoint: *mut sys::iree_async_semaphore_timepoint_t,
    status: sys::iree_status_t,
) {
    // Whoever was called asks the fence, which tells more.
    // SAFETY: the status is ours.
    unsafe { sys::iree_status_free(status) };
    // SAFETY: the reference that was held for this call, the only one.
    let registered = unsafe { Arc::from_raw(registered.cast::<Registered>().cast_const()) };
    catch_quietly(move || {
        let callback = registered.callback.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(callback) = callback {
            callback();
        }
    });
}

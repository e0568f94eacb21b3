//! Whether a handle is the only one: what [writing](crate::buffer) asks for.

use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use iree_sys as sys;

use crate::base::error::{Code, Error, Result};
use crate::hal::memory::buffer::Buffer;

/// Workers put a call away after it has returned; its references go within this time.
pub(crate) const PUT_AWAY: Duration = Duration::from_millis(100);

/// So long a thread that waits for it gives way to others, before it sleeps.
pub(crate) const SHORTLY: Duration = Duration::from_millis(1);

impl Buffer {
    /// An error unless this is the only handle to the memory, at `limit` at the latest.
    pub(crate) fn exclusive(&mut self, limit: Duration) -> Result<()> {
        // SAFETY: the buffer is live.
        wait(limit, || unsafe { sole(self.raw()) })
    }
}

/// References to a HAL resource.
///
/// # Safety
/// It is live.
pub(crate) unsafe fn references(resource: *mut sys::iree_hal_resource_t) -> i32 {
    // SAFETY: by the contract of this function. The counter is a C atomic of this size; acquire:
    // what others did to the resource before they released it has happened.
    unsafe { AtomicI32::from_ptr(&raw mut (*resource).ref_count) }.load(Ordering::Acquire)
}

/// Whether a live buffer has one reference, and so has the allocation that it is a part of.
///
/// # Safety
/// The buffer is live.
pub(crate) unsafe fn sole(buffer: *mut sys::iree_hal_buffer_t) -> bool {
    // SAFETY: by the contract of this function; a buffer holds its allocation.
    unsafe {
        let allocation = sys::iree_hal_buffer_allocated_buffer(buffer);
        references(buffer.cast()) == 1 && (allocation == buffer || sole(allocation))
    }
}

/// Who asks has the handle to itself (`&mut`), so that what is true once stays true.
pub(crate) fn wait(limit: Duration, is_sole: impl Fn() -> bool) -> Result<()> {
    let asked = Instant::now();
    while !is_sole() {
        let waited = asked.elapsed();
        if waited >= limit {
            return Err(Error::new(
                Code::FailedPrecondition,
                "the memory has another handle (a clone, view or part, an argument or result list \
                 of a call, a call in flight): only the only one writes it. Drop the others, or \
                 wait for the call",
            ));
        }
        if waited < SHORTLY {
            thread::yield_now();
        } else {
            thread::sleep(SHORTLY / 10);
        }
    }
    Ok(())
}

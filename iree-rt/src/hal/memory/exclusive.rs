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

/// So often it is looked before a wait is given up, with sleeps between: where the system lets nothing of
/// the process run for a while, time goes by and the workers get nowhere.
pub(crate) const LOOKS: u32 = 20;

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
    let mut looks = if limit.is_zero() { 0 } else { LOOKS };
    while !is_sole() {
        let waited = asked.elapsed();
        if waited >= limit && looks == 0 {
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
            looks = looks.saturating_sub(1);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_stalled_process_is_given_time_after_the_limit() {
        let asked = Cell::new(0);
        let sole_at = |wanted| {
            asked.set(asked.get() + 1);
            if asked.get() == 1 {
                thread::sleep(2 * SHORTLY);
            }
            asked.get() == wanted
        };
        wait(SHORTLY, || sole_at(10)).unwrap();
        asked.set(0);
        assert_eq!(wait(SHORTLY, || sole_at(0)).unwrap_err().code(), Code::FailedPrecondition);
        asked.set(0);
        wait(Duration::ZERO, || sole_at(0)).unwrap_err();
        assert_eq!(asked.get(), 1, "who does not want to wait is told at once");
    }
}

//! Semaphores: timelines that work waits for and signals.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use iree_sys as sys;

use crate::base::error::{Code, Error, Result};
use crate::hal::devices::device::Device;
use crate::hal::sync::fence::Fence;
use crate::hal::sync::timeline::Timeline;

/// The greatest value: IREE reads greater ones as failures.
const MOST: u64 = sys::IREE_HAL_SEMAPHORE_MAX_VALUE as u64;

/// A timeline that the host moves: a number that only grows, or fails for good.
///
/// [`fence`](Self::fence) gives a [`Fence`] at one of its values, for a call to wait for.
/// Cloning gives another handle to the same one; any thread may use it at any time.
///
/// When the last handle goes and a fence was made at a value that it has not reached, the semaphore
/// fails with [`Code::Cancelled`], and with it all of its fences, those that were reached too: nothing waits for what
/// cannot happen. Keep a handle while a fence of it is asked.
///
/// ```
/// # #[cfg(feature = "link")] fn main() -> iree_rt::Result<()> {
/// use iree_rt::{Code, Instance, Semaphore};
/// use std::time::Duration;
///
/// let device = Instance::get()?.device("local-task")?;
/// let steps = Semaphore::new(&device, 0)?;
/// let third = steps.fence(3)?;
/// steps.signal(2)?;
/// assert!(!third.is_reached()?);
/// let late = third.wait(Some(Duration::from_millis(1))).unwrap_err();
/// assert_eq!(late.code(), Code::DeadlineExceeded);
/// std::thread::scope(|scope| {
///     scope.spawn(|| steps.signal(3));
///     third.wait(None)
/// })?;
/// assert_eq!(steps.value()?, 3);
/// # Ok(()) }
/// # #[cfg(not(feature = "link"))] fn main() {}
/// ```
#[derive(Clone)]
pub struct Semaphore(Arc<Inner>);

struct Inner {
    timeline: Timeline,
    /// The greatest value that a fence was made at.
    awaited: AtomicU64,
}

impl Semaphore {
    /// A semaphore at `value`, for work of `device`.
    ///
    /// # Errors
    /// [`OutOfRange`](Code::OutOfRange) for a value of 2³¹ - 1 or more; when memory runs out.
    pub fn new(device: &Device, value: u64) -> Result<Self> {
        check_value(value)?;
        let timeline = Timeline::new(device, value)?;
        Ok(Self(Arc::new(Inner { timeline, awaited: AtomicU64::new(0) })))
    }

    /// The value that it has reached.
    ///
    /// # Errors
    /// What it failed with.
    pub fn value(&self) -> Result<u64> {
        self.0.timeline.value()
    }

    /// Moves it on to `value`.
    ///
    /// # Errors
    /// [`InvalidArgument`](Code::InvalidArgument) when it is there or further already;
    /// [`OutOfRange`](Code::OutOfRange) for a value of 2³¹ - 1 or more; what it failed with.
    pub fn signal(&self, value: u64) -> Result<()> {
        check_value(value)?;
        self.value()?;
        self.0.timeline.signal(value)
    }

    /// Fails it for good: what waits for it, and what waits for that, fails with `error` too. The
    /// first failure counts.
    pub fn fail(&self, error: &Error) {
        self.0.timeline.fail(error);
    }

    /// Waits until it reaches `value`; without a timeout, for as long as that takes.
    ///
    /// # Errors
    /// [`DeadlineExceeded`](Code::DeadlineExceeded) when the time is over;
    /// [`OutOfRange`](Code::OutOfRange) for a value that it cannot reach; what it failed with.
    pub fn wait(&self, value: u64, timeout: Option<Duration>) -> Result<()> {
        check_value(value)?;
        self.0.timeline.wait(value, timeout)
    }

    /// The fence that is reached when this reaches `value`.
    ///
    /// # Errors
    /// [`OutOfRange`](Code::OutOfRange) for a value that it cannot reach; when memory runs out.
    pub fn fence(&self, value: u64) -> Result<Fence> {
        check_value(value)?;
        let fence = self.0.timeline.fence(value)?;
        self.0.awaited.fetch_max(value, Ordering::Relaxed);
        Ok(fence)
    }

    #[cfg(feature = "raw")]
    pub(crate) fn raw(&self) -> *mut sys::iree_hal_semaphore_t {
        self.0.timeline.raw()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let awaited = *self.awaited.get_mut();
        if self.timeline.value().is_ok_and(|value| value < awaited) {
            self.timeline.fail(&Error::new(
                Code::Cancelled,
                format!("the last handle of a semaphore was dropped before it reached {awaited}"),
            ));
        }
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Semaphore").field(&self.value()).finish()
    }
}

fn check_value(value: u64) -> Result<()> {
    if value <= MOST {
        return Ok(());
    }
    Err(Error::new(Code::OutOfRange, format!("a semaphore reaches {MOST} at most, not {value}")))
}

//! Cancelling: stopping a session between its calls, and giving up compilations.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Code, Error, Result};

/// Stops the calls of a [`Session`](crate::Session), or compilations
/// ([`CompileLimits`](crate::CompileLimits)), from any thread. Cloning gives another handle to the
/// same one.
///
/// Calls and compilations that begin after [`cancel`](Self::cancel) fail with
/// [`Code::Cancelled`]. A call that runs is not interrupted; a compilation is given up soon.
///
/// ```no_run
/// # fn generate(mut session: iree_rt::Session, step: iree_rt::Function) -> iree_rt::Result<()> {
/// let canceller = session.canceller();
/// std::thread::spawn(move || {
///     std::thread::sleep(std::time::Duration::from_secs(10));
///     canceller.cancel();
/// });
/// loop {
///     session.call(&step, [])?; // fails with `Code::Cancelled` after 10 seconds
/// }
/// # }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Canceller(Arc<AtomicBool>);

impl Canceller {
    /// One that has stopped nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Stops what begins from now on, and compilations that run.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Lets them begin again.
    pub fn reset(&self) {
        self.0.store(false, Ordering::Release);
    }

    /// Whether they are stopped.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// An error when `what` is to stop.
    pub(crate) fn check(&self, what: &str) -> Result<()> {
        if self.is_cancelled() {
            return Err(Error::new(Code::Cancelled, format!("{what} was cancelled")));
        }
        Ok(())
    }
}

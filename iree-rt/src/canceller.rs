//! Cancelling: stopping a session between its calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Code, Error, Result};

/// Stops the calls of a [`Session`](crate::Session), from any thread: those that begin after
/// [`cancel`](Self::cancel) fail with [`Code::Cancelled`]. One that runs is not interrupted.
/// Cloning gives another handle to the same one.
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
    /// Stops calls that begin from now on.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Lets calls begin again.
    pub fn reset(&self) {
        self.0.store(false, Ordering::Release);
    }

    /// Whether calls are stopped.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.is_cancelled() {
            return Err(Error::new(Code::Cancelled, "the session was cancelled"));
        }
        Ok(())
    }
}

//! Cancelling: stopping a session between its calls, and giving up compilations.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::base::error::{Code, Error, Result};

/// Stops the calls of a [`Session`](crate::Session), or compilations
/// ([`CompileLimits`](crate::CompileLimits)), from any thread. Cloning gives another handle to the
/// same one.
///
/// Calls and compilations that begin after [`cancel`](Self::cancel) fail with
/// [`Code::Cancelled`]. A call that runs is not interrupted, nor has it a time limit: IREE has no
/// way to stop one. Who must not wait for it starts it and waits with a timeout
/// ([`Session::call_async`](crate::Session::call_async), [`AsyncSession`](crate::AsyncSession)). A
/// compilation is given up soon.
///
/// ```
/// # #[cfg(all(feature = "link", feature = "compiler"))] fn main() -> iree_rt::Result<()> {
/// # use iree_rt::{Code, CompileOptions, Compiler, Instance, Module, Session};
/// # let vmfb = Compiler::find()?.compile(
/// #     "module @gate { func.func @step(%a: i32) -> i32 { return %a : i32 } }",
/// #     &CompileOptions::default(),
/// # )?;
/// # let device = Instance::get()?.device("local-task")?;
/// # // SAFETY: compiled just now for the CPU of this machine.
/// # let module = unsafe { Module::from_bytes(&vmfb)? };
/// # let mut session = Session::builder(&device).module(module).build()?;
/// let step = session.typed::<(i32,), i32>("gate.step")?;
/// let canceller = session.canceller();
/// std::thread::spawn(move || {
///     std::thread::sleep(std::time::Duration::from_millis(10));
///     canceller.cancel();
/// });
/// let stopped = loop {
///     if let Err(error) = step.call(&mut session, (1,)) {
///         break error;
///     }
/// };
/// assert_eq!(stopped.code(), Code::Cancelled);
/// session.canceller().reset();
/// assert_eq!(step.call(&mut session, (2,))?, 2);
/// # Ok(()) }
/// # #[cfg(not(all(feature = "link", feature = "compiler")))] fn main() {}
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

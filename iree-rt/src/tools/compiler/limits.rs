//! What a compilation may take, and when it is given up.

use std::time::{Duration, Instant};

use crate::base::canceller::Canceller;
use crate::base::error::{Code, Error, Result};

/// What [`Compiler::compile_within`](crate::Compiler::compile_within) may take, and when it gives
/// up; the default is as many threads as there are cores, and never.
///
/// ```
/// # #[cfg(all(feature = "link", feature = "compiler"))] fn main() -> iree_rt::Result<()> {
/// use iree_rt::{Canceller, Code, CompileLimits, CompileOptions, Compiler};
///
/// let canceller = Canceller::new();
/// let limits = CompileLimits::default().cancel(&canceller);
/// std::thread::spawn(move || canceller.cancel());
/// let text = "func.func @f() { return }";
/// match Compiler::find()?.compile_within(text, &CompileOptions::default(), &limits) {
///     Ok(vmfb) => assert!(!vmfb.is_empty()),
///     Err(error) => assert_eq!(error.code(), Code::Cancelled),
/// }
/// # Ok(()) }
/// # #[cfg(not(all(feature = "link", feature = "compiler")))] fn main() {}
/// ```
#[derive(Clone, Debug, Default)]
pub struct CompileLimits {
    timeout: Option<Duration>,
    canceller: Canceller,
    single_thread: bool,
}

impl CompileLimits {
    /// After this time.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// When `canceller` says so.
    pub fn cancel(mut self, canceller: &Canceller) -> Self {
        self.canceller = canceller.clone();
        self
    }

    /// Whether the program works on one thread, for who compiles on all cores already: handing
    /// work to others takes a fifth of its processor time where a graph has many dispatches, and
    /// little where it has few. The library cannot be told so.
    pub fn single_thread(mut self, single: bool) -> Self {
        self.single_thread = single;
        self
    }

    /// What the program is told of them.
    pub(super) fn flag(&self) -> Option<&'static str> {
        self.single_thread.then_some("--mlir-disable-threading")
    }

    pub(super) fn begin(&self) -> Watch<'_> {
        Watch { limits: self, since: Instant::now(), pause: Duration::from_millis(1) }
    }
}

/// The limits of a compilation that runs.
pub(super) struct Watch<'a> {
    limits: &'a CompileLimits,
    since: Instant,
    pause: Duration,
}

impl Watch<'_> {
    /// Cancels within this time.
    const LONGEST_PAUSE: Duration = Duration::from_millis(20);

    /// How long to wait before the next look: short at first, as small programs compile fast.
    pub(super) fn pause(&mut self) -> Duration {
        let pause = self.pause;
        self.pause = (pause * 2).min(Self::LONGEST_PAUSE);
        match self.limits.timeout {
            Some(timeout) => pause.min(timeout.saturating_sub(self.since.elapsed())),
            None => pause,
        }
    }

    pub(super) fn check(&self) -> Result<()> {
        self.limits.canceller.check("the compilation")?;
        match self.limits.timeout {
            Some(timeout) if self.since.elapsed() >= timeout => Err(Error::new(
                Code::DeadlineExceeded,
                format!("the compilation took longer than {timeout:?}"),
            )),
            _ => Ok(()),
        }
    }
}

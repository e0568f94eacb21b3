//! When a compilation is given up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::error::{Code, Error, Result};

/// Gives compilations up, from any thread. Cloning gives another handle to the same one.
///
/// ```
/// # #[cfg(feature = "link")] fn main() -> iree_rt::Result<()> {
/// use iree_rt::{CancelToken, Code, CompileLimits, CompileOptions, Compiler};
///
/// let limits = CompileLimits::default().cancel(&CancelToken::new());
/// let stop = limits.token().clone();
/// std::thread::spawn(move || stop.cancel());
/// let text = "func.func @f() { return }";
/// match Compiler::find()?.compile_within(text, &CompileOptions::default(), &limits) {
///     Ok(vmfb) => assert!(!vmfb.is_empty()),
///     Err(error) => assert_eq!(error.code(), Code::Cancelled),
/// }
/// # Ok(()) }
/// # #[cfg(not(feature = "link"))] fn main() {}
/// ```
#[derive(Clone, Debug, Default)]
pub struct CancelToken(Arc<AtomicBool>);

impl CancelToken {
    /// One that is not cancelled.
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives up what is compiled with it, now and later.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// When [`Compiler::compile_within`](crate::Compiler::compile_within) gives up; the default is
/// never.
#[derive(Clone, Debug, Default)]
pub struct CompileLimits {
    timeout: Option<Duration>,
    token: CancelToken,
}

impl CompileLimits {
    /// After this time.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// When `token` is cancelled.
    pub fn cancel(mut self, token: &CancelToken) -> Self {
        self.token = token.clone();
        self
    }

    /// What cancels: that of [`cancel`](Self::cancel), else one of its own.
    pub fn token(&self) -> &CancelToken {
        &self.token
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
        if self.limits.token.is_cancelled() {
            return Err(Error::new(Code::Cancelled, "the compilation was cancelled"));
        }
        match self.limits.timeout {
            Some(timeout) if self.since.elapsed() >= timeout => Err(Error::new(
                Code::DeadlineExceeded,
                format!("the compilation took longer than {timeout:?}"),
            )),
            _ => Ok(()),
        }
    }
}

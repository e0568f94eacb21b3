//! The end of the process, which waits for threads that nobody joins.
//!
//! Drivers are libraries that clean up when the process exits; a thread that still uses one then crashes it.

use std::cell::Cell;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use std::{io, thread};

/// Longest that the process's exit waits in all: a thread may be at a device that is lost.
const PATIENCE: Duration = Duration::from_secs(5);

/// How many there are.
static HELD: Mutex<usize> = Mutex::new(0);
static FEWER: Condvar = Condvar::new();
/// Until when exiting waits, once it does.
static DEADLINE: OnceLock<Instant> = OnceLock::new();

thread_local! {
    /// Whether this is one of those of [`spawn`], and may be the one that exits.
    static IS_HELD: Cell<bool> = const { Cell::new(false) };
}

/// Does `work`, which ends by itself and soon, on a new thread that exiting waits for.
///
/// # Errors
/// The system has no thread; `work` is dropped.
pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let held = Held::new();
    let work = move || {
        IS_HELD.set(true);
        work();
        drop(held);
    };
    thread::Builder::new().name(name.into()).spawn(work)?;
    Ok(())
}

/// What exiting waits for, as long as it is there.
pub(crate) struct Held(());

impl Held {
    pub(crate) fn new() -> Self {
        *lock() += 1;
        Self(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        *lock() -= 1;
        FEWER.notify_all();
    }
}

/// Has the process's exit wait, before what has been loaded so far cleans up: handlers run in the reverse order.
/// Called by who has opened a device by a driver that is a library.
pub(crate) fn wait_when_exiting() {
    // SAFETY: the function is there until the process ends, and does not unwind.
    let _ = unsafe { libc::atexit(wait) };
    // Refused for want of memory, it is as it was.
}

extern "C" fn wait() {
    let own = usize::from(IS_HELD.try_with(Cell::get).unwrap_or_default());
    let more = |held: &mut usize| *held > own;
    // There is a handler for each device that was opened.
    let deadline = *DEADLINE.get_or_init(|| Instant::now() + PATIENCE);
    let left = deadline.saturating_duration_since(Instant::now());
    drop(FEWER.wait_timeout_while(lock(), left, more));
}

fn lock() -> MutexGuard<'static, usize> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, mpsc};

    use super::*;

    #[test]
    fn exiting_waits_for_threads_but_not_for_itself() {
        let over = Arc::new(AtomicBool::new(false));
        let (exited, exits) = mpsc::channel();
        let others = over.clone();
        spawn("slow", move || {
            thread::sleep(Duration::from_millis(50));
            others.store(true, Ordering::Release);
        })
        .unwrap();
        wait();
        assert!(over.load(Ordering::Acquire));
        spawn("exits", move || {
            wait();
            exited.send(()).unwrap();
        })
        .unwrap();
        exits.recv_timeout(PATIENCE / 2).unwrap();
    }
}

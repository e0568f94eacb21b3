//! Being called by IREE, on a thread of its own.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::thread;

thread_local! {
    static CALLED: Cell<bool> = const { Cell::new(false) };
}

/// Runs what IREE calls back for: a panic must not unwind into C.
pub(crate) fn called_back(run: impl FnOnce()) {
    let outer = CALLED.replace(true);
    if let Err(payload) = panic::catch_unwind(AssertUnwindSafe(run)) {
        // Dropping the payload could panic again.
        std::mem::forget(payload);
    }
    CALLED.set(outer);
}

/// Runs `release`, which may wait for IREE's threads, where that is no deadlock: in a callback on
/// one of those threads (a waker dropped the last handle), on a new thread.
pub(crate) fn release(release: impl FnOnce() + Send + 'static) {
    if CALLED.get() {
        // Without a thread to be had, what was to be released stays.
        let _ = thread::Builder::new().name("iree-rt-release".into()).spawn(release);
    } else {
        release();
    }
}

//! Being called by IREE, on threads of ours or of its own.
//!
//! Panics end here, as unwinding into C is undefined.

use std::any::Any;
use std::cell::Cell;
use std::mem::{self, ManuallyDrop};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use crate::base::error::{Code, Error, Result};
use crate::base::{exit, float_mode};

thread_local! {
    static CALLED: Cell<bool> = const { Cell::new(false) };
}

/// Runs what IREE calls back for, whose panic becomes an error.
pub(crate) fn catch<T>(code: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_as_is(|| float_mode::of_rust(code))
}

/// The same, with floats as IREE's own code has them: for arithmetic that stands in the place of that.
pub(crate) fn catch_as_is<T>(code: impl FnOnce() -> Result<T>) -> Result<T> {
    called(code).unwrap_or_else(|payload| {
        Err(Error::new(Code::Internal, format!("panicked: {}", message(payload))))
    })
}

/// Runs what IREE calls back for, whose panic goes no further: nobody is there to be told.
pub(crate) fn catch_quietly(code: impl FnOnce()) {
    called(|| float_mode::of_rust(code)).unwrap_or_else(discard);
}

fn called<T>(code: impl FnOnce() -> T) -> thread::Result<T> {
    let outer = CALLED.replace(true);
    let result = catch_unwind(AssertUnwindSafe(code));
    CALLED.set(outer);
    result
}

/// Runs `release`, which may wait for IREE's threads, where that is no deadlock: in a callback, which
/// may be on one of those threads (a waker dropped the last handle), on a new thread.
pub(crate) fn release(release: impl FnOnce() + Send + 'static) {
    if CALLED.get() {
        // Without a thread to be had, what was to be released stays: dropping it here would wait.
        let release = ManuallyDrop::new(release);
        let release = move || ManuallyDrop::into_inner(release)();
        let _ = exit::spawn("iree-rt-release", release);
    } else {
        release();
    }
}

/// Drops what something panicked with, and keeps what that panics with.
pub(crate) fn discard(payload: Box<dyn Any + Send>) {
    called(|| drop(payload)).unwrap_or_else(mem::forget);
}

fn message(payload: Box<dyn Any + Send>) -> String {
    let text = payload
        .downcast::<String>()
        .map(|text| *text)
        .or_else(|payload| payload.downcast::<&str>().map(|text| (*text).to_owned()));
    text.unwrap_or_else(|payload| {
        discard(payload);
        "something other than text".into()
    })
}

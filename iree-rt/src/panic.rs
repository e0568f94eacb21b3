//! Panics of Rust code that IREE calls: they end here, as unwinding into C is undefined.

use std::any::Any;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::{Code, Error, Result};

/// Runs `code`, whose panic becomes an error.
pub(crate) fn catch<T>(code: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(code)).unwrap_or_else(|payload| {
        Err(Error::new(Code::Internal, format!("panicked: {}", message(payload))))
    })
}

/// Drops `value`, whose panic goes no further: nobody is there to be told.
pub(crate) fn drop_quietly<T>(value: T) {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(value))) {
        // Dropping the payload could panic again.
        mem::forget(payload);
    }
}

fn message(payload: Box<dyn Any + Send>) -> String {
    let text = payload
        .downcast::<String>()
        .map(|text| *text)
        .or_else(|payload| payload.downcast::<&str>().map(|text| (*text).to_owned()));
    text.unwrap_or_else(|payload| {
        // It could panic once more when it is dropped.
        mem::forget(payload);
        "something other than text".into()
    })
}

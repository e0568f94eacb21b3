//! Panics of libraries on what they read, as errors.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    /// Whether a panic of this thread is about to become an error.
    static CAUGHT: Cell<bool> = const { Cell::new(false) };
}

/// What `work` returns, or the message with which it panicked; nothing is printed then.
pub fn catch<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let print = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !CAUGHT.get() {
                print(info);
            }
        }));
    });
    let before = CAUGHT.replace(true);
    // What is left half-done is used no more, or behind a lock that is poisoned.
    let result = panic::catch_unwind(AssertUnwindSafe(work));
    CAUGHT.set(before);
    result.map_err(|payload| {
        let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_are_errors() {
        assert_eq!(catch(|| 7), Ok(7));
        assert_eq!(catch(|| panic!("plain")), Err::<(), _>("plain".to_owned()));
        let number = 3;
        assert_eq!(catch(|| panic!("number {number}")), Err::<(), _>("number 3".to_owned()));
        assert!(!CAUGHT.get());
    }
}

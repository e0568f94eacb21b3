//! Texts and arrays that IREE hands out.

use std::slice;

use iree_sys as sys;

/// # Safety
/// `first` points to `count` values, or `count` is 0.
pub(crate) unsafe fn entries<'a, T>(first: *const T, count: usize) -> &'a [T] {
    if count == 0 {
        return &[];
    }
    // SAFETY: by the contract of this function.
    unsafe { slice::from_raw_parts(first, count) }
}

/// # Safety
/// `view` points to live bytes.
pub(crate) unsafe fn text(view: sys::iree_string_view_t) -> String {
    // SAFETY: by the contract of this function.
    let bytes = unsafe { entries(view.data.cast::<u8>(), view.size) };
    String::from_utf8_lossy(bytes).into_owned()
}

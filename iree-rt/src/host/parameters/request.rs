//! Requests: how programs name parameters, and where their bytes are.

use iree_sys as sys;

use crate::base::error::{Error, Result};
use crate::base::status::check;
use crate::base::text::entries;

/// # Safety
/// `view` points to live bytes.
pub(super) unsafe fn name<'a>(view: sys::iree_string_view_t) -> Result<&'a str> {
    // SAFETY: by the contract of this function.
    let bytes = unsafe { entries(view.data.cast::<u8>(), view.size) };
    std::str::from_utf8(bytes).map_err(|_| Error::invalid("a parameter's name is not UTF-8"))
}

/// What a program asks for or writes: names, and where their bytes are.
///
/// # Safety
/// `enumerator` lists `count` parameters, and is live as long as the names are used.
pub(super) unsafe fn spans<'a>(
    count: usize,
    enumerator: sys::iree_io_parameter_enumerator_t,
) -> impl Iterator<Item = Result<(&'a str, sys::iree_io_parameter_span_t)>> {
    // SAFETY: by the contract of this function.
    (0..count).map(move |at| unsafe { span(at, enumerator) })
}

/// The name that is asked for or written at `at`, and where its bytes are.
///
/// # Safety
/// `enumerator` lists more than `at` parameters, and is live as long as the name is used.
pub(super) unsafe fn span<'a>(
    at: usize,
    enumerator: sys::iree_io_parameter_enumerator_t,
) -> Result<(&'a str, sys::iree_io_parameter_span_t)> {
    let enumerate = enumerator.fn_.expect("IREE passes an enumerator");
    let mut key = sys::iree_string_view_empty();
    let mut span = sys::iree_io_parameter_span_t::default();
    // SAFETY: by the contract of this function.
    unsafe {
        check(enumerate(enumerator.user_data, at, &mut key, &mut span))?;
        Ok((name(key)?, span))
    }
}

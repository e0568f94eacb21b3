//! Between `iree_status_t` and `Result`: the only place that reads, frees or makes a status.

use iree_sys as sys;

use crate::base::error::{Code, Error, Result};

/// Takes ownership of `status`: `Ok` when it is OK, else its code and full text.
pub(crate) fn check(status: sys::iree_status_t) -> Result<()> {
    if sys::iree_status_is_ok(status) { Ok(()) } else { Err(take(status)) }
}

/// A status for IREE to carry on: OK, or the code and text of the error.
pub(crate) fn status_of(result: Result<()>) -> sys::iree_status_t {
    match result {
        Ok(()) => sys::iree_status_from_code(sys::IREE_STATUS_OK),
        Err(error) => into_status(&error),
    }
}

/// A status of the code and message of `error`, for IREE to carry on.
#[cold]
pub(crate) fn into_status(error: &Error) -> sys::iree_status_t {
    let known = CODES.iter().find(|(code, _)| *code == error.code());
    let code = known.map_or(sys::IREE_STATUS_UNKNOWN, |&(_, raw)| raw);
    // SAFETY: the status copies the message.
    unsafe {
        sys::iree_status_allocate_copy(
            code,
            sys::iree_string_view_empty(),
            0,
            sys::iree_make_string_view(error.message()),
        )
    }
}

#[cold]
fn take(status: sys::iree_status_t) -> Error {
    let code = code(sys::iree_status_code(status));
    let mut message = format(status);
    // SAFETY: the status is ours, and not used again after it is freed.
    let bare = unsafe {
        let bare = sys::iree_status_message(status).size == 0;
        sys::iree_status_free(status);
        bare
    };
    if code == Code::ResourceExhausted && bare {
        message.push_str("; the host allocator has no more memory");
    }
    Error::new(code, message)
}

fn format(status: sys::iree_status_t) -> String {
    let mut length = 0;
    // SAFETY: with no buffer, IREE only computes the length; the status stays ours.
    unsafe { sys::iree_status_format(status, 0, std::ptr::null_mut(), &mut length) };
    let mut buffer = vec![0u8; length + 1];
    // SAFETY: the buffer has the capacity that is passed.
    let whole = unsafe {
        sys::iree_status_format(status, buffer.len(), buffer.as_mut_ptr().cast(), &mut length)
    };
    buffer.truncate(if whole { length.min(buffer.len()) } else { 0 });
    String::from_utf8_lossy(&buffer).trim_end_matches(['\0', '\n', ' ']).to_owned()
}

fn code(raw: sys::iree_status_code_t) -> Code {
    match CODES.iter().find(|&&(_, known)| known == raw) {
        Some((code, _)) => *code,
        None if raw == sys::IREE_STATUS_DEFERRED => Code::Deferred,
        None => Code::Unknown,
    }
}

/// Without DEFERRED, which to IREE is no failure but "not yet": the VM would wait for us to go on.
const CODES: [(Code, sys::iree_status_code_t); 16] = [
    (Code::Cancelled, sys::IREE_STATUS_CANCELLED),
    (Code::InvalidArgument, sys::IREE_STATUS_INVALID_ARGUMENT),
    (Code::DeadlineExceeded, sys::IREE_STATUS_DEADLINE_EXCEEDED),
    (Code::NotFound, sys::IREE_STATUS_NOT_FOUND),
    (Code::AlreadyExists, sys::IREE_STATUS_ALREADY_EXISTS),
    (Code::PermissionDenied, sys::IREE_STATUS_PERMISSION_DENIED),
    (Code::ResourceExhausted, sys::IREE_STATUS_RESOURCE_EXHAUSTED),
    (Code::FailedPrecondition, sys::IREE_STATUS_FAILED_PRECONDITION),
    (Code::Aborted, sys::IREE_STATUS_ABORTED),
    (Code::OutOfRange, sys::IREE_STATUS_OUT_OF_RANGE),
    (Code::Unimplemented, sys::IREE_STATUS_UNIMPLEMENTED),
    (Code::Internal, sys::IREE_STATUS_INTERNAL),
    (Code::Unavailable, sys::IREE_STATUS_UNAVAILABLE),
    (Code::DataLoss, sys::IREE_STATUS_DATA_LOSS),
    (Code::Unauthenticated, sys::IREE_STATUS_UNAUTHENTICATED),
    (Code::Incompatible, sys::IREE_STATUS_INCOMPATIBLE),
];

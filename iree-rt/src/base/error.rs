//! What goes wrong: one error type with a code to match on.

use std::borrow::Cow;
use std::fmt;

/// A `Result` with this crate's [`struct@Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an operation failed: a [`Code`] to match on, and a message for people.
///
/// A failure inside IREE carries IREE's own message, its annotations and the source location
/// that raised it.
///
/// ```
/// # #[cfg(feature = "link")] fn main() -> iree_rt::Result<()> {
/// use iree_rt::{Code, Error, Instance};
///
/// fn open(uri: &str) -> iree_rt::Result<iree_rt::Device> {
///     Instance::get()?.device(uri).map_err(|error| error.context("starting up"))
/// }
///
/// let error = open("abacus").unwrap_err();
/// match error.code() {
///     Code::NotFound => assert!(error.message().contains("this runtime has"), "{error}"),
///     other => panic!("{other:?}"),
/// }
/// // One error for everything: boxed, and sent to other threads.
/// let boxed: Box<dyn std::error::Error + Send + Sync> = error.into();
/// assert!(boxed.to_string().starts_with("starting up: "));
/// assert!(boxed.downcast_ref::<Error>().is_some());
/// # Ok(()) }
/// # #[cfg(not(feature = "link"))] fn main() {}
/// ```
#[derive(Clone, thiserror::Error)]
#[error("{}", .0.message)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    code: Code,
    message: String,
}

/// The kinds of failure, as IREE's `iree_status_code_t` names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Code {
    /// Cancelled by the caller.
    Cancelled,
    /// No better code is known.
    Unknown,
    /// An argument is wrong whatever the state of the system: dtype, shape, arity, a bad file.
    InvalidArgument,
    /// A wait ran out of time.
    DeadlineExceeded,
    /// Something named does not exist: a function, a file, a driver.
    NotFound,
    /// Something to be made exists already.
    AlreadyExists,
    /// The caller may not do this.
    PermissionDenied,
    /// Memory or another resource ran out.
    ResourceExhausted,
    /// The system is not in a state in which this can be done.
    FailedPrecondition,
    /// Aborted by the system.
    Aborted,
    /// An offset, length or index lies outside.
    OutOfRange,
    /// Not implemented or not supported here.
    Unimplemented,
    /// An invariant was broken.
    Internal,
    /// Not available now; trying again may help.
    Unavailable,
    /// Data is lost or damaged.
    DataLoss,
    /// Credentials are missing.
    Unauthenticated,
    /// To be resumed later.
    Deferred,
    /// The program does not fit this machine or runtime.
    Incompatible,
}

impl Error {
    /// An error of `code` that says `message`; control characters in it, which names from files may
    /// have, are written as escapes.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if let Cow::Owned(printable) = printable(&message) {
            message = printable;
        }
        Self(Box::new(Inner { code, message }))
    }

    /// The kind of failure.
    pub fn code(&self) -> Code {
        self.0.code
    }

    /// What failed, and where.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The same error, saying first what was being done.
    pub fn context(mut self, what: impl fmt::Display) -> Self {
        self.0.message = format!("{}: {}", printable(&what.to_string()), self.0.message);
        self
    }

    /// The same error with another code.
    pub(crate) fn with_code(mut self, code: Code) -> Self {
        self.0.code = code;
        self
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, message)
    }
}

/// `text` with its control characters escaped, but for the line breaks and tabs of what compilers say.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    let control = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    if !text.contains(control) {
        return text.into();
    }
    let mut printable = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if control(c) {
            printable.extend(c.escape_debug());
        } else {
            printable.push(c);
        }
    }
    printable.into()
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.code(), self.message())
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        use std::io::ErrorKind;
        let code = match error.kind() {
            ErrorKind::NotFound => Code::NotFound,
            ErrorKind::PermissionDenied => Code::PermissionDenied,
            ErrorKind::AlreadyExists => Code::AlreadyExists,
            ErrorKind::OutOfMemory
            | ErrorKind::StorageFull
            | ErrorKind::QuotaExceeded
            | ErrorKind::FileTooLarge
            // As threads and processes are refused that are too many.
            | ErrorKind::WouldBlock => Code::ResourceExhausted,
            ErrorKind::InvalidInput | ErrorKind::InvalidData | ErrorKind::IsADirectory => {
                Code::InvalidArgument
            }
            ErrorKind::UnexpectedEof => Code::DataLoss,
            ErrorKind::TimedOut => Code::DeadlineExceeded,
            _ => Code::Unknown,
        };
        Self::new(code, error.to_string())
    }
}

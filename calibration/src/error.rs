//! The crate's one error type.

use std::path::PathBuf;

/// What went wrong, on which file or tensor, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model cannot be read.
    #[error(transparent)]
    Model(#[from] checkpoint::Error),
    /// A file could not be read or written.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The folder has something else in it.
    #[error("{path}: {message}", path = path.display())]
    Folder {
        /// The folder, or the file in it.
        path: PathBuf,
        /// What is wrong, and what to do.
        message: String,
    },
    /// The model has a part that is not rounded here.
    #[error("{what}")]
    Unsupported {
        /// The part, and what to do.
        what: String,
    },
    /// The text has no tokens, or ids that the model does not know.
    #[error("{what}")]
    Text {
        /// What is wrong with it.
        what: String,
    },
    /// Whoever watches wants no more of it; what was finished is kept.
    #[error("stopped")]
    Stopped,
    /// What a matrix reads, or its weights, are not finite.
    #[error("`{tensor}`: {what}")]
    Numbers {
        /// The matrix.
        tensor: String,
        /// What is wrong.
        what: String,
    },
}

/// The crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Wraps an I/O error with the path it happened on.
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }
}

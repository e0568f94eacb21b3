//! The crate's one error type.

use std::path::{Path, PathBuf};

use crate::LoadMode;

/// What went wrong, on which file, tensor or key, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// `config.json`, `generation_config.json` or a GGUF file is missing a key, malformed or unsupported.
    #[error("{path}: {message}", path = path.display())]
    Config {
        /// The configuration file.
        path: PathBuf,
        /// The key and what is wrong with it.
        message: String,
    },
    /// The checkpoint (safetensors or GGUF file, shard or index) is damaged or does not fit the model.
    #[error("{path}: {message}", path = path.display())]
    Checkpoint {
        /// The weight file or index.
        path: PathBuf,
        /// The tensor and what is wrong with it.
        message: String,
    },
    /// No [`LoadMode`] has this name.
    #[error(
        "unknown load mode `{value}`; known: {known}",
        known = LoadMode::ALL.map(|(name, _)| name).join(", ")
    )]
    UnknownLoadMode {
        /// The value that was given.
        value: String,
    },
}

/// The crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// A file that ends before the length it had when it was opened is a damaged checkpoint, not a
    /// fault of the disk.
    pub(crate) fn shortened(path: &Path, e: std::io::Error) -> Self {
        if e.kind() == std::io::ErrorKind::UnexpectedEof {
            let message = "the file became shorter while it was read; is something writing to it?";
            Self::Checkpoint { path: path.into(), message: message.into() }
        } else {
            Self::io(path)(e)
        }
    }

    /// Wraps an I/O error with the path it happened on.
    pub fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }
}

//! The crate's one error type.

use std::path::PathBuf;

/// What went wrong, on which file, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file is there but cannot be read.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The model has no tokenizer.
    #[error(
        "{path}: no such file: text needs the model's tokenizer; copy it into the model folder",
        path = path.display()
    )]
    NoTokenizer {
        /// Where it would be.
        path: PathBuf,
    },
    /// The tokenizer is damaged, or fails on a text or on tokens.
    #[error("{path}: {message}", path = path.display())]
    Tokenizer {
        /// The tokenizer's file.
        path: PathBuf,
        /// What it was to do, and why it cannot.
        message: String,
    },
    /// The model has no chat template.
    #[error(
        "{folder}: the model has no chat template (chat_template.jinja, or chat_template in \
         tokenizer_config.json)",
        folder = folder.display()
    )]
    NoChatTemplate {
        /// The model's folder.
        folder: PathBuf,
    },
    /// The chat template, or the file that holds it, is damaged, or refuses a conversation.
    #[error("{path}: {message}", path = path.display())]
    ChatTemplate {
        /// The template's file.
        path: PathBuf,
        /// Where it fails and why; what the template itself says of the conversation.
        message: String,
    },
    /// An empty stop string.
    #[error("an empty stop string would stop before the first token: give at least one character")]
    EmptyStopString,
}

/// The crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

//! The crate's one error type.

/// What went wrong, on which model, file or request, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A model cannot be found, fetched or read.
    #[error("{0:#}")]
    Model(anyhow::Error),
    /// A tokenizer or a chat template is missing or damaged, or refuses what it is given.
    #[error(transparent)]
    Text(#[from] text::Error),
    /// What the engine refuses, or where it fails.
    #[error(transparent)]
    Engine(#[from] xla_session::Error),
    /// A form that cannot be kept to.
    #[error(transparent)]
    Form(#[from] crate::form::FormError),
    /// Tools in a form that is not known, or of which the one to call is not there.
    #[error(transparent)]
    Tools(#[from] crate::tools::ToolError),
    /// What the model does not do.
    #[error("{0}")]
    Unsupported(String),
}

/// The crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl From<anyhow::Error> for Error {
    fn from(error: anyhow::Error) -> Self {
        Self::Model(error)
    }
}

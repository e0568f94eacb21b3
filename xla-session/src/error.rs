//! The crate's one error type.

use std::path::PathBuf;
use std::sync::Arc;

/// What went wrong, on which file, tensor, key or option, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read or written.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The model's files are missing, damaged, unsupported or do not fit each other.
    #[error(transparent)]
    Checkpoint(#[from] checkpoint::Error),
    /// A token id that the model's vocabulary does not hold.
    #[error("token id {token} is outside the vocabulary of {vocab_size} tokens (0 to {})", vocab_size - 1)]
    TokenOutOfRange {
        /// The offending id.
        token: u32,
        /// Number of ids the model knows.
        vocab_size: usize,
    },
    /// A prefill with no token.
    #[error("the prompt is empty: give at least one token")]
    EmptyPrompt,
    /// More tokens than the session's context holds.
    #[error(
        "{needed} tokens do not fit the context of {context}: shorten the prompt{}",
        or_raise(*context, *max)
    )]
    ContextFull {
        /// Tokens that would have been in the context.
        needed: usize,
        /// Tokens that the session was opened for.
        context: usize,
        /// Tokens that the model can be opened for.
        max: usize,
    },
    /// Fewer pages of the KV cache can be had than a step needs; no sequence has changed.
    #[error(
        "the step needs {needed} more pages of the KV cache and {free} are free: drop or truncate a \
         sequence, or open the engine with a larger KV cache"
    )]
    OutOfPages {
        /// Pages that the step would have taken.
        needed: usize,
        /// Pages that could be had: those that hold nothing, and the idle ones of the prefix cache.
        free: usize,
    },
    /// More sequences in a step than there is room for their states, in a model that keeps some.
    #[error(
        "the step needs room for the states of {needed} sequences, and there is some for {free}: run fewer at a \
         time, drop some, or open the engine with a larger KV cache or more states"
    )]
    OutOfStates {
        /// States that the step would leave.
        needed: usize,
        /// States that it could.
        free: usize,
    },
    /// More rows than a step of the engine takes; nothing has been run.
    #[error("a step of {rows} rows: this engine takes {most} at most; run prompts in pieces")]
    TooManyRows {
        /// Tokens of all runs together.
        rows: usize,
        /// [`EngineOptions::rows`](crate::engine::EngineOptions::rows).
        most: usize,
    },
    /// A request that would not fit the KV cache if it were the only one.
    #[error(
        "the request needs {needed} pages of the KV cache, which has {total} in all: shorten its \
         prompt or its answer, or open the engine with a larger KV cache"
    )]
    RequestTooLarge {
        /// Pages of the prompt and of the longest answer.
        needed: usize,
        /// Pages in all.
        total: usize,
    },
    /// What the model makes of a row is not numbers; no sequence has changed.
    #[error(
        "what the model makes of a token is not numbers: the weights hold NaN or infinities{advice}"
    )]
    NotNumbers {
        /// The row of the step.
        row: usize,
        /// What else it may be.
        advice: &'static str,
    },
    /// A request that cannot go on, for which the others need not wait: cancel it.
    #[error("a request cannot go on, and is to be cancelled")]
    Request {
        /// The request.
        request: crate::scheduler::RequestId,
        /// Why.
        source: Box<Self>,
    },
    /// Steps failed again and again, so that all requests were given up.
    #[error("{times} steps failed, one after the other: {source}")]
    StepsFailed {
        /// How many.
        times: u32,
        /// How the last one did.
        source: Arc<Self>,
    },
    /// The thread that runs requests has ended, or was told to run no more.
    #[error("there is no more of the answer: what runs the requests has stopped")]
    Stopped,
    /// An option's value is not one of the known ones.
    #[error("unknown {what} `{value}`; known: {known}")]
    Unknown {
        /// What was being chosen: "backend", "precision", "device".
        what: &'static str,
        /// The value that was given.
        value: String,
        /// The known values, comma-separated.
        known: String,
    },
    /// The session does not offer what was asked of it.
    #[error("{0}")]
    Unsupported(String),
    /// The cache of compiled graphs and packed weights cannot be used.
    #[error("cache {path}: {message}", path = path.display())]
    Cache {
        /// The entry or folder.
        path: PathBuf,
        /// What is wrong and what to do.
        message: String,
    },
    /// A graph has to be compiled, and nobody named a compiler and none is found.
    #[cfg(feature = "iree")]
    #[error("no IREE compiler for the graph {graph}, which no cache holds for {code}")]
    NoCompiler {
        /// What the cache calls the graph.
        graph: String,
        /// What it would be compiled for.
        code: String,
        /// Where it was looked for, and how to get one.
        source: iree_rt::Error,
    },
    /// The IREE compiler or runtime failed.
    #[cfg(feature = "iree")]
    #[error("{context}: {source}")]
    Iree {
        /// What was being done.
        context: String,
        /// IREE's own error.
        source: iree_rt::Error,
    },
    /// Another engine failed.
    #[error("{engine}: {message}")]
    Engine {
        /// The engine's name.
        engine: &'static str,
        /// Its message.
        message: String,
    },
}

/// What else to do about a context of so many tokens, of a model that allows `max`.
fn or_raise(context: usize, max: usize) -> String {
    if context < max {
        format!(", or raise the context (the model allows {max})")
    } else {
        String::new()
    }
}

/// The crate's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Wraps an I/O error with the path it happened on.
    pub fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }

    /// The value called `value` among `all`, or an error that lists them.
    pub(crate) fn by_name<T: Copy>(
        what: &'static str,
        value: &str,
        all: &[(&str, T)],
    ) -> Result<T> {
        let found = all.iter().find(|(name, _)| *name == value);
        found.map(|(_, it)| *it).ok_or_else(|| Self::Unknown {
            what,
            value: value.into(),
            known: all.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", "),
        })
    }
}

//! Why an IREE folder could not be made or verified.

use std::io;
use std::path::{Path, PathBuf};

/// A [`std::result::Result`] with this module's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What build scripts may run into as well.
    #[error(transparent)]
    Iree(#[from] iree_src::Error),
    /// A download failed; `why` says what to do.
    #[cfg(feature = "dist")]
    #[error("cannot download {url}: {why}")]
    Download { url: String, why: String },
    /// `--offline` was asked for, but something is not cached.
    #[error("{what} is not cached and --offline forbids to fetch it; run once without --offline")]
    Offline { what: String },
    /// `--check` found problems.
    #[error(
        "{} has {} problem(s):\n  {}\nmake it again with the flags that made it, and --force: `cargo xtask fetch-iree --force --out {}`",
        folder.display(),
        problems.len(),
        problems.join("\n  "),
        folder.display()
    )]
    Check { folder: PathBuf, problems: Vec<String> },
}

impl Error {
    /// An adapter for `map_err`: says which operation on which path failed.
    pub fn io<'a>(
        action: &'static str,
        path: &'a Path,
    ) -> impl FnOnce(io::Error) -> Error + use<'a> {
        let adapt = iree_src::Error::io(action, path);
        move |source| adapt(source).into()
    }

    /// What was asked for contradicts itself or what is already there.
    pub fn request(what: impl Into<String>) -> Error {
        iree_src::Error::Request(what.into()).into()
    }
}

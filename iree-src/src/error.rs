//! The one error of this crate.

use std::io;
use std::path::{Path, PathBuf};

/// A [`std::result::Result`] with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an IREE folder could not be found, read or made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file operation failed.
    #[error("cannot {action} {}: {source}{}", path.display(), io_hint(source))]
    Io {
        /// What was being done, as a verb.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// `iree.json` cannot be understood.
    #[error("{} is not a usable IREE manifest: {why}; make the folder again", path.display())]
    Manifest {
        /// The manifest.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A folder that somebody named holds no IREE that can be used.
    #[error(
        "{} (from {from}) cannot be used: {why}; name an unpacked release archive of IREE {}, or a \
         folder that `cargo xtask fetch-iree --out DIR` of iree-llm made, or unset {from}",
        path.display(),
        crate::IREE_VERSION
    )]
    NotAnIreeFolder {
        /// The folder.
        path: PathBuf,
        /// Who named it: an environment variable or a flag.
        from: String,
        /// What is missing.
        why: String,
    },
    /// A program that is needed is missing, too old or broken.
    #[error("{tool}: {why}; {fix}")]
    Tool {
        /// The program.
        tool: String,
        /// What is wrong with it.
        why: String,
        /// What to do now.
        fix: String,
    },
    /// A program failed.
    #[error("{what} failed ({status}){}{}", log_hint(log), tail_hint(tail))]
    Command {
        /// What it was doing.
        what: String,
        /// Its exit status.
        status: String,
        /// Its last lines.
        tail: String,
        /// The whole output, when it was kept.
        log: Option<PathBuf>,
    },
    /// Bytes that came are not the bytes that were expected.
    #[error("{name}: sha256 is {found}, expected {expected}; {fix}")]
    Hash {
        /// The file.
        name: String,
        /// The pinned hash, lower-case hex.
        expected: String,
        /// That of what came.
        found: String,
        /// What to do now.
        fix: String,
    },
    /// There is no artifact for this platform.
    #[error("no pinned {name} for {target}; {fix}")]
    Platform {
        /// The artifact.
        name: String,
        /// The target triple.
        target: String,
        /// What to do now.
        fix: String,
    },
    /// What was asked for contradicts itself or what is already there.
    #[error("{0}")]
    Request(String),
}

impl Error {
    /// An adapter for `map_err`: says which operation on which path failed.
    pub fn io<'a>(
        action: &'static str,
        path: &'a Path,
    ) -> impl FnOnce(io::Error) -> Error + use<'a> {
        move |source| Error::Io { action, path: path.to_owned(), source }
    }
}

fn io_hint(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; an IREE folder needs about 1.5 GB while it is made: free some room"
        }
        io::ErrorKind::PermissionDenied => "; it has to be writable",
        _ => "",
    }
}

fn log_hint(log: &Option<PathBuf>) -> String {
    log.as_ref().map_or_else(String::new, |log| format!(", whole output in {}", log.display()))
}

fn tail_hint(tail: &str) -> String {
    if tail.is_empty() { String::new() } else { format!(":\n{tail}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_says_what_to_do() {
        let full = io::Error::from(io::ErrorKind::StorageFull);
        let text = Error::io("write", Path::new("x/iree.json"))(full).to_string();
        assert!(text.contains("x/iree.json") && text.contains("free some room"), "{text}");
    }

    #[test]
    fn is_send_and_sync() {
        fn check<T: Send + Sync + 'static>() {}
        check::<Error>();
    }
}

//! Folders in which something is brought, beside the place that it is renamed to when it is whole.

use std::ffi::OsStr;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::Path;

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::progress::Progress;

const PREFIX: &str = ".incoming-";
const LOCK: &str = ".lock";

/// Whether a name is one of this module's.
pub fn is_own(name: &OsStr) -> bool {
    name == LOCK || name.as_encoded_bytes().starts_with(PREFIX.as_bytes())
}

/// Ends a [`lock`] of `parent` in which nobody is to find its file.
pub fn unlock(lock: File, parent: &Path) {
    // Nobody minds one that is left.
    let _ = fs::remove_file(parent.join(LOCK));
    drop(lock);
}

/// Waits until nobody else brings anything into `parent`, which is made if need be, and removes what was left there by
/// those that were stopped. While the file lives, others wait.
///
/// # Errors
///
/// The folder cannot be written.
pub fn lock(parent: &Path, progress: &Progress) -> Result<File> {
    let lock = || {
        fs::create_dir_all(parent)?;
        let file = File::create(parent.join(LOCK))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                progress.say("another process writes there; waiting");
                file.lock()?;
            }
            Err(TryLockError::Error(error)) => return Err(error),
        }
        for entry in parent.read_dir()? {
            let path = entry?.path();
            if path.is_dir() && path.file_name().is_some_and(is_own) {
                fs::remove_dir_all(path)?;
            }
        }
        Ok::<_, io::Error>(file)
    };
    lock().with_context(|| parent.display().to_string())
}

/// A folder in `parent`, for who holds its [`lock`].
///
/// # Errors
///
/// It cannot be made.
pub fn folder(parent: &Path) -> Result<TempDir> {
    let folder = tempfile::Builder::new().prefix(PREFIX).tempdir_in(parent);
    folder.with_context(|| parent.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_stopped_process_left_goes_and_nothing_else() {
        let place = tempfile::tempdir().unwrap();
        let parent = place.path().join("models");
        let progress = Progress::new(true);
        drop(lock(&parent, &progress).unwrap());
        let left = folder(&parent).unwrap().keep();
        fs::write(left.join("half"), "x").unwrap();
        fs::write(parent.join("whole"), "x").unwrap();
        let held = lock(&parent, &progress).unwrap();
        assert!(!left.exists() && parent.join("whole").exists());
        assert!(File::open(parent.join(".lock")).unwrap().try_lock().is_err());
        drop(held);
    }
}

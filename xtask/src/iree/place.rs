//! Puts a finished folder in its place at once, guarded against a second process.
//!
//! Next to the folder `iree` there may be `.iree.lock` (the lock), `.iree.new` (being made) and
//! `.iree.old` (being replaced). The last two belong to whoever holds the lock, so what an
//! interrupted run left there can be removed or put back without asking.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use iree_src::MANIFEST;

use super::progress::Progress;
use super::{Error, Result};

/// The place of an IREE folder, locked while this lives.
#[derive(Debug)]
pub struct Place {
    out: PathBuf,
    new: PathBuf,
    old: PathBuf,
    _lock: File,
}

impl Place {
    /// Locks the place; waits while another process holds it.
    pub fn lock(out: &Path, progress: Progress) -> Result<Place> {
        let out = std::path::absolute(out).map_err(Error::io("resolve", out))?;
        let (Some(parent), Some(name)) = (out.parent(), out.file_name()) else {
            return Err(Error::request(format!("{} cannot be an IREE folder", out.display())));
        };
        let sibling = |suffix: &str| parent.join(format!(".{}.{suffix}", name.to_string_lossy()));
        fs::create_dir_all(parent).map_err(Error::io("create", parent))?;
        let path = sibling("lock");
        let lock = File::create(&path).map_err(Error::io("create", &path))?;
        let locked = match lock.try_lock() {
            Err(TryLockError::WouldBlock) => {
                progress
                    .line(&format!("  waiting for another process that fills {}", out.display()));
                lock.lock()
            }
            Err(TryLockError::Error(error)) => Err(error),
            Ok(()) => Ok(()),
        };
        locked.map_err(Error::io("lock", &path))?;
        let place = Place { new: sibling("new"), old: sibling("old"), out, _lock: lock };
        place.recover()?;
        Ok(place)
    }

    /// The folder that will be replaced.
    pub fn out(&self) -> &Path {
        &self.out
    }

    fn recover(&self) -> Result<()> {
        remove(&self.new)?;
        if self.old.exists() && !self.out.exists() {
            fs::rename(&self.old, &self.out).map_err(Error::io("put back", &self.out))?;
        }
        remove(&self.old)
    }

    /// Makes the empty folder that will become the new one.
    pub fn stage(&self) -> Result<PathBuf> {
        self.check_replaceable()?;
        fs::create_dir(&self.new).map_err(Error::io("create", &self.new))?;
        Ok(self.new.clone())
    }

    // A wrong `--out` must not delete somebody's folder.
    fn check_replaceable(&self) -> Result<()> {
        let occupied = match fs::read_dir(&self.out) {
            Ok(mut entries) => entries.next().is_some() && !self.out.join(MANIFEST).exists(),
            Err(e) => e.kind() != io::ErrorKind::NotFound,
        };
        if !occupied {
            return Ok(());
        }
        Err(Error::request(format!(
            "{} exists and is not an IREE folder; remove it, or choose another one with --out",
            self.out.display()
        )))
    }

    /// Replaces the old folder by `staged`.
    pub fn commit(self, staged: &Path) -> Result<()> {
        if self.out.exists() {
            fs::rename(&self.out, &self.old).map_err(Error::io("move away", &self.out))?;
        }
        fs::rename(staged, &self.out).map_err(Error::io("put in place", &self.out))?;
        remove(&self.old)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // A failed run frees its gigabyte now; the next one would otherwise.
        let _ = remove(&self.new);
    }
}

/// Removes a file or folder that may not exist.
pub fn remove(path: &Path) -> Result<()> {
    let result = match path.symlink_metadata() {
        Ok(meta) if meta.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(e) => Err(e),
    };
    match result {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(Error::io("remove", path)(e)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(folder: &Path, content: &str) {
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join(MANIFEST), content).unwrap();
    }

    fn content(folder: &Path) -> String {
        fs::read_to_string(folder.join(MANIFEST)).unwrap()
    }

    #[test]
    fn keeps_the_old_folder_until_the_new_one_is_complete() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("iree");
        put(&out, "old");
        let place = Place::lock(&out, Progress::Silent).unwrap();
        let staged = place.stage().unwrap();
        put(&staged, "new");
        assert_eq!(content(&out), "old");
        place.commit(&staged).unwrap();
        assert_eq!(content(&out), "new");
        let names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().path()).collect();
        assert_eq!(names.len(), 2, "the folder and the lock: {names:?}");
    }

    #[test]
    fn recovers_from_an_interruption_at_every_point() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("iree");
        // While the new one was being made:
        put(&out, "old");
        put(&dir.path().join(".iree.new"), "half");
        drop(Place::lock(&out, Progress::Silent).unwrap());
        assert_eq!(content(&out), "old");
        assert!(!dir.path().join(".iree.new").exists());
        // Between the two renames:
        fs::rename(&out, dir.path().join(".iree.old")).unwrap();
        drop(Place::lock(&out, Progress::Silent).unwrap());
        assert_eq!(content(&out), "old");
        // After both, before the old one was removed:
        put(&dir.path().join(".iree.old"), "older");
        drop(Place::lock(&out, Progress::Silent).unwrap());
        assert_eq!(content(&out), "old");
        assert!(!dir.path().join(".iree.old").exists());
    }

    #[test]
    fn an_abandoned_stage_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::lock(&dir.path().join("iree"), Progress::Silent).unwrap();
        let staged = place.stage().unwrap();
        drop(place);
        assert!(!staged.exists() && !dir.path().join("iree").exists());
    }

    #[test]
    fn never_replaces_a_folder_that_is_not_ours() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("thesis.tex"), "x").unwrap();
        let place = Place::lock(dir.path(), Progress::Silent).unwrap();
        assert!(place.stage().unwrap_err().to_string().contains("not an IREE folder"));
    }

    #[test]
    fn a_second_one_waits() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("iree");
        let place = Place::lock(&out, Progress::Silent).unwrap();
        let staged = place.stage().unwrap();
        let second = std::thread::spawn({
            let out = out.clone();
            move || {
                let place = Place::lock(&out, Progress::Silent).unwrap();
                content(place.out())
            }
        });
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert!(!second.is_finished());
        put(&staged, "first");
        place.commit(&staged).unwrap();
        assert_eq!(second.join().unwrap(), "first");
    }
}

//! A repository in the hub's cache, laid out as `huggingface_hub` does: what files hold lies in `blobs`, named after
//! the hub's ETag, `snapshots/<commit>` has links to it, and `refs/<revision>` says which commit that is.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};

use super::is_word;

/// The folders of one model.
#[derive(Debug)]
pub struct Repo {
    folder: PathBuf,
    locks: PathBuf,
}

impl Repo {
    /// Those of the model `name`, `owner/name`, in `cache`.
    pub fn new(cache: &Path, name: &str) -> Self {
        let name = format!("models--{}", name.replace('/', "--"));
        Self { folder: cache.join(&name), locks: cache.join(".locks").join(name) }
    }

    /// Where the files of `commit` lie.
    pub fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder.join("snapshots").join(commit)
    }

    /// The commit that `revision` was when it was last asked for.
    pub fn commit(&self, revision: &str) -> Option<String> {
        if is_commit(revision) {
            return Some(revision.to_owned());
        }
        let commit = fs::read_to_string(self.folder.join("refs").join(revision)).ok()?;
        Some(commit.trim().to_owned()).filter(|it| is_word(it))
    }

    /// The files of all commits, what was changed last first.
    pub fn snapshots(&self) -> Vec<PathBuf> {
        let folders = self.folder.join("snapshots").read_dir().into_iter().flatten().flatten();
        let mut folders: Vec<_> = folders
            .filter_map(|it| Some((it.metadata().ok()?.modified().ok()?, it.path())))
            .collect();
        folders.sort_by(|a, b| b.cmp(a));
        folders.into_iter().map(|(_, path)| path).collect()
    }

    /// Notes that `revision` is `commit`.
    ///
    /// # Errors
    ///
    /// The folder cannot be written.
    pub fn refer(&self, revision: &str, commit: &str) -> Result<()> {
        if self.commit(revision).as_deref() == Some(commit) {
            return Ok(());
        }
        let path = self.folder.join("refs").join(revision);
        let parent = path.parent().unwrap_or(&path);
        let write = || {
            fs::create_dir_all(parent)?;
            // Readable by whoever shares the cache, as temporary files are not.
            let (id, now) = (std::process::id(), SystemTime::now().duration_since(UNIX_EPOCH));
            let unique = format!(".ref-{id}-{}", now.unwrap_or_default().as_nanos());
            let new = self.folder.join(unique);
            fs::write(&new, commit)?;
            fs::rename(&new, &path).inspect_err(|_| drop(fs::remove_file(&new)))
        };
        write().with_context(|| path.display().to_string())
    }

    /// Notes that `commit` has no file `name`, as Hugging Face's own tools do.
    ///
    /// # Errors
    ///
    /// The folder cannot be written.
    pub fn note_absent(&self, commit: &str, name: &str) -> io::Result<()> {
        let path = self.absent(commit, name);
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        File::options().create(true).append(true).open(path).map(drop)
    }

    /// Whether that was noted.
    pub fn is_absent(&self, commit: &str, name: &str) -> bool {
        self.absent(commit, name).exists()
    }

    fn absent(&self, commit: &str, name: &str) -> PathBuf {
        self.folder.join(".no_exist").join(commit).join(name)
    }

    /// Where what has this ETag lies.
    pub fn blob(&self, etag: &str) -> PathBuf {
        self.folder.join("blobs").join(etag)
    }

    /// Makes the blob the file `name` of `commit`.
    ///
    /// # Errors
    ///
    /// The folder cannot be written.
    pub fn link(&self, blob: &Path, commit: &str, name: &str) -> Result<()> {
        let path = self.snapshot(commit).join(name);
        if path.exists() {
            // Another process has made it, and may be reading it.
            return Ok(());
        }
        let parent = path.parent().unwrap_or(&path);
        let up = "../".repeat(2 + name.matches('/').count());
        let target = Path::new(&up).join(blob.strip_prefix(&self.folder)?);
        let link = || {
            fs::create_dir_all(parent)?;
            if path.is_symlink() {
                // Its blob was removed.
                fs::remove_file(&path)?;
            }
            // There are file systems without links.
            symlink(&target, &path)
                .or_else(|_| fs::hard_link(blob, &path))
                .or_else(|_| fs::copy(blob, &path).map(drop))
        };
        link().with_context(|| path.display().to_string())
    }

    /// Waits until nobody else brings what has this ETag; `waits` is called if that takes time.
    ///
    /// # Errors
    ///
    /// The folder cannot be written.
    pub fn lock(&self, etag: &str, waits: impl FnOnce()) -> Result<File> {
        let path = self.locks.join(format!("{etag}.lock"));
        let lock = || {
            fs::create_dir_all(&self.locks)?;
            let file = File::options().create(true).append(true).open(&path)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    waits();
                    file.lock()?;
                }
                Err(TryLockError::Error(error)) => return Err(error),
            }
            Ok(file)
        };
        lock().with_context(|| path.display().to_string())
    }
}

/// Whether a revision is a commit itself.
fn is_commit(revision: &str) -> bool {
    revision.len() == 40 && revision.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(unix)]
fn symlink(target: &Path, link: &Path) -> io::Result<()> {
    std::os::unix::fs::symlink(target, link)
}

#[cfg(not(unix))]
fn symlink(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_needs_no_reference_and_others_are_written_once() {
        let folder = tempfile::tempdir().unwrap();
        let (repo, commit) = (Repo::new(folder.path(), "a/b"), "0f".repeat(20));
        let refs = folder.path().join("models--a--b/refs");
        repo.refer(&commit, &commit).unwrap();
        assert!(!refs.exists());
        repo.refer("refs/pr/3", &commit).unwrap();
        assert_eq!(fs::read_to_string(refs.join("refs/pr/3")).unwrap(), commit);
        assert_eq!(repo.commit("refs/pr/3"), Some(commit.clone()));
        // One that says it already need not be writable.
        fs::rename(&refs, folder.path().join("kept")).unwrap();
        fs::create_dir(&refs).unwrap();
        fs::hard_link(folder.path().join("kept/refs/pr/3"), refs.join("main")).unwrap();
        let main = File::options().write(true).open(refs.join("main")).unwrap();
        main.set_modified(UNIX_EPOCH).unwrap();
        repo.refer("main", &commit).unwrap();
        assert_eq!(refs.join("main").metadata().unwrap().modified().unwrap(), UNIX_EPOCH);
        fs::write(refs.join("odd"), "../../x").unwrap();
        assert_eq!(repo.commit("odd"), None);
    }

    #[test]
    fn links_are_relative_and_replace_those_that_lead_nowhere() {
        let folder = tempfile::tempdir().unwrap();
        let repo = Repo::new(&folder.path().join("hub"), "a/b");
        let blob = repo.blob("e");
        fs::create_dir_all(blob.parent().unwrap()).unwrap();
        fs::write(&blob, "text").unwrap();
        for name in ["a.txt", "a.txt", "sub/deep/b.txt"] {
            repo.link(&blob, "c", name).unwrap();
            fs::remove_file(&blob).unwrap();
            assert!(!repo.snapshot("c").join(name).exists());
            fs::write(&blob, "text").unwrap();
        }
        // A good one stays: others may be reading it.
        let other = repo.snapshot("c").join("other.txt");
        symlink(&blob, &other).unwrap();
        repo.link(&blob, "c", "other.txt").unwrap();
        assert_eq!(other.read_link().unwrap(), blob);
        // The cache may move.
        fs::rename(folder.path().join("hub"), folder.path().join("moved")).unwrap();
        let repo = Repo::new(&folder.path().join("moved"), "a/b");
        for name in ["a.txt", "sub/deep/b.txt"] {
            assert_eq!(fs::read_to_string(repo.snapshot("c").join(name)).unwrap(), "text");
        }
        assert_eq!(repo.snapshots(), [repo.snapshot("c")]);
    }
}

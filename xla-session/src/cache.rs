//! Compiled graphs on disk, shared by every process of a user.
//!
//! An entry is two files named after its key: the compiled graph, `.vmfb`, and a `.json` with its
//! length and SHA-256, written last. An entry counts only if the two agree, so that whatever was
//! interrupted or damaged is compiled again. Writers hold the entry's `.lock`; readers need none.

mod key;

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fs4::fs_std::FileExt;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

pub use key::{Key, KeyParts};

use crate::{Error, Result};

/// A folder of compiled graphs.
#[derive(Debug, Clone)]
pub struct Cache {
    folder: PathBuf,
}

/// What an entry is, for people who list the cache.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Label {
    /// The graph: "decode_step", "prefill_256".
    pub graph: String,
    /// The model it was made for.
    pub model: String,
}

/// One compiled graph in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheEntry {
    /// Its key.
    pub key: Key,
    /// What it is.
    pub label: Label,
    /// The compiled graph.
    pub path: PathBuf,
    /// Its size in bytes.
    pub bytes: u64,
    /// When it was compiled.
    pub created: SystemTime,
    /// When it was last asked for.
    pub last_used: SystemTime,
}

/// The `.json` of an entry.
#[derive(Serialize, Deserialize)]
struct Seal {
    #[serde(flatten)]
    label: Label,
    bytes: u64,
    sha256: String,
    /// Seconds since 1970.
    created: u64,
}

impl Cache {
    /// The cache in `folder`, which is made if it is not there; what killed processes left is
    /// removed.
    ///
    /// # Errors
    ///
    /// [`Error::Cache`] when the folder cannot be made or read.
    pub fn open(folder: impl Into<PathBuf>) -> Result<Self> {
        let cache = Self { folder: folder.into() };
        fs::create_dir_all(&cache.folder).map_err(|e| cache.failed("cannot make the folder", e))?;
        for (key, rest, path) in cache.scan()? {
            // Whoever still compiles this entry holds its lock.
            if rest.ends_with(".tmp")
                && let Ok(Some(_lock)) = cache.try_lock(&key)
            {
                let _ = fs::remove_file(path);
            }
        }
        Ok(cache)
    }

    /// The user's own cache folder for this program; `None` when the user has no home folder.
    pub fn default_folder() -> Option<PathBuf> {
        Some(dirs::cache_dir()?.join("iree-llm"))
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The compiled graph of `key`, if the cache holds it undamaged.
    pub fn get(&self, key: &Key) -> Option<PathBuf> {
        let path = self.file(key, "vmfb");
        let seal_path = self.file(key, "json");
        let seal: Seal = serde_json::from_slice(&fs::read(&seal_path).ok()?).ok()?;
        if fs::metadata(&path).ok()?.len() != seal.bytes || sha256(&path).ok()? != seal.sha256 {
            return None;
        }
        // The time of last use; a cache that is read-only to us goes without.
        if let Ok(file) = File::options().append(true).open(&seal_path) {
            let _ = file.set_modified(SystemTime::now());
        }
        Some(path)
    }

    /// The compiled graph of `key`; where the cache lacks it, or holds it damaged, `compile` makes
    /// it by writing to the path it is given.
    ///
    /// When several threads or processes ask for the same key at once, one compiles and the others
    /// wait for it. A `compile` that fails, or is killed, leaves the cache as it was.
    ///
    /// # Errors
    ///
    /// What `compile` returned, or [`Error::Cache`] when the folder cannot be written or the disk
    /// is full: the caller may then compile to a place of its own.
    pub fn get_or_compile(
        &self,
        key: &Key,
        label: &Label,
        compile: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<PathBuf> {
        if let Some(path) = self.get(key) {
            return Ok(path);
        }
        let _lock = self.lock(key)?;
        // Another process may have compiled it while we waited for the lock.
        if let Some(path) = self.get(key) {
            return Ok(path);
        }
        self.remove(key, |rest| rest.ends_with(".tmp"))?;
        let compiled = self.temporary(key)?;
        compile(&compiled).map_err(|e| self.explain(e))?;

        let unreadable = |e| self.failed("cannot read what the compiler wrote", e);
        let created = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let seal = Seal {
            label: label.clone(),
            bytes: fs::metadata(&compiled).map_err(unreadable)?.len(),
            sha256: sha256(&compiled).map_err(unreadable)?,
            created: created.as_secs(),
        };
        if seal.bytes == 0 {
            return Err(self.error(format!("the compiler wrote nothing for {}", label.graph)));
        }
        let unwritable = |e| self.failed("cannot write an entry", e);
        let sealed = self.temporary(key)?;
        let json = serde_json::to_vec(&seal).map_err(io::Error::from).map_err(unwritable)?;
        fs::write(&sealed, json).map_err(unwritable)?;

        let path = self.file(key, "vmfb");
        compiled.persist(&path).map_err(|e| unwritable(e.error))?;
        sealed.persist(self.file(key, "json")).map_err(|e| unwritable(e.error))?;
        Ok(path)
    }

    /// Every complete entry, the latest used first. Contents are not verified.
    ///
    /// # Errors
    ///
    /// [`Error::Cache`] when the folder cannot be read.
    pub fn entries(&self) -> Result<Vec<CacheEntry>> {
        let entry = |key: Key, seal_path: PathBuf| {
            let seal: Seal = serde_json::from_slice(&fs::read(&seal_path).ok()?).ok()?;
            let path = self.file(&key, "vmfb");
            Some(CacheEntry {
                bytes: fs::metadata(&path).ok()?.len(),
                created: UNIX_EPOCH.checked_add(Duration::from_secs(seal.created))?,
                last_used: fs::metadata(&seal_path).ok()?.modified().ok()?,
                label: seal.label,
                key,
                path,
            })
        };
        let mut entries: Vec<_> = self
            .scan()?
            .into_iter()
            .filter(|(_, rest, _)| rest == ".json")
            .filter_map(|(key, _, path)| entry(key, path))
            .collect();
        entries.sort_by(|a, b| b.last_used.cmp(&a.last_used).then_with(|| a.key.cmp(&b.key)));
        Ok(entries)
    }

    /// Size of all files of the cache together, in bytes.
    ///
    /// # Errors
    ///
    /// [`Error::Cache`] when the folder cannot be read.
    pub fn total_bytes(&self) -> Result<u64> {
        let files = self.scan()?;
        Ok(files.iter().filter_map(|(.., path)| fs::metadata(path).ok()).map(|m| m.len()).sum())
    }

    /// Removes every entry except those being compiled at the moment; returns how many bytes that
    /// freed. Files that are not the cache's stay.
    ///
    /// # Errors
    ///
    /// [`Error::Cache`] when the folder cannot be read or a file cannot be removed.
    pub fn clear(&self) -> Result<u64> {
        let before = self.total_bytes()?;
        let mut keys: Vec<_> = self.scan()?.into_iter().map(|(key, ..)| key).collect();
        keys.dedup();
        for key in keys {
            if let Some(_lock) = self.try_lock(&key)? {
                // The lock goes last; whoever waits for it notices that it is gone.
                self.remove(&key, |rest| rest != ".lock")?;
                self.remove(&key, |rest| rest == ".lock")?;
            }
        }
        Ok(before.saturating_sub(self.total_bytes()?))
    }

    fn file(&self, key: &Key, extension: &str) -> PathBuf {
        self.folder.join(format!("{key}.{extension}"))
    }

    /// The cache's own files: key, rest of the name, path; by name.
    fn scan(&self) -> Result<Vec<(Key, String, PathBuf)>> {
        let unreadable = |e| self.failed("cannot read the folder", e);
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            if let Some((key, rest)) = entry.file_name().to_str().and_then(Key::split) {
                files.push((key, rest.to_owned(), entry.path()));
            }
        }
        files.sort_unstable();
        Ok(files)
    }

    /// Removes those files of `key` whose rest of the name `which` picks.
    fn remove(&self, key: &Key, which: impl Fn(&str) -> bool) -> Result<()> {
        for (_, rest, path) in self.scan()?.into_iter().filter(|(found, ..)| found == key) {
            if !which(&rest) {
                continue;
            }
            match fs::remove_file(&path) {
                Err(e) if e.kind() != ErrorKind::NotFound => {
                    return Err(self.failed("cannot remove an old file", e));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// A fresh file beside the entry; it goes when the value does, unless it is persisted.
    fn temporary(&self, key: &Key) -> Result<tempfile::TempPath> {
        tempfile::Builder::new()
            .prefix(&format!("{key}."))
            .suffix(".tmp")
            .tempfile_in(&self.folder)
            .map(tempfile::NamedTempFile::into_temp_path)
            .map_err(|e| self.failed("cannot write in the folder", e))
    }

    /// Waits until this is the only one that writes the entry.
    fn lock(&self, key: &Key) -> Result<File> {
        let failed = |e| self.failed("cannot lock an entry", e);
        loop {
            let file = self.lock_file(key)?;
            file.lock_exclusive().map_err(failed)?;
            if self.is_current(key, &file).map_err(failed)? {
                return Ok(file);
            }
        }
    }

    /// The lock of `key` if nobody holds it.
    fn try_lock(&self, key: &Key) -> Result<Option<File>> {
        let failed = |e| self.failed("cannot lock an entry", e);
        let file = self.lock_file(key)?;
        let locked = file.try_lock_exclusive().map_err(failed)?;
        Ok((locked && self.is_current(key, &file).map_err(failed)?).then_some(file))
    }

    fn lock_file(&self, key: &Key) -> Result<File> {
        File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(self.file(key, "lock"))
            .map_err(|e| self.failed("cannot write in the folder", e))
    }

    /// Whether the locked `file` still is the entry's lock: [`clear`](Self::clear) removes locks,
    /// and a lock on a removed file excludes nobody.
    fn is_current(&self, key: &Key, file: &File) -> io::Result<bool> {
        match same_file::Handle::from_path(self.file(key, "lock")) {
            Ok(there) => Ok(there == same_file::Handle::from_file(file.try_clone()?)?),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// What a failed `compile` means for the cache: a full disk is ours to explain.
    fn explain(&self, error: Error) -> Error {
        /// Below this a compiler's failure is put down to the disk.
        const ENOUGH_BYTES: u64 = 4 << 20;
        match error {
            Error::Io { path, source } if is_full(&source) => {
                self.full(format!("{}: {source}", path.display()))
            }
            Error::Cache { .. } => error,
            other => match fs4::available_space(&self.folder) {
                Ok(bytes) if bytes < ENOUGH_BYTES => {
                    self.full(format!("{bytes} bytes are left on its disk ({other})"))
                }
                _ => other,
            },
        }
    }

    fn failed(&self, what: &str, e: io::Error) -> Error {
        if is_full(&e) {
            self.full(format!("{what}: {e}"))
        } else {
            self.error(format!("{what} ({e}): make it writable, or choose another cache folder"))
        }
    }

    fn full(&self, what: String) -> Error {
        self.error(format!("no room: {what}; free some space, or choose another cache folder"))
    }

    fn error(&self, message: String) -> Error {
        Error::Cache { path: self.folder.clone(), message }
    }
}

fn is_full(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

fn sha256(path: &Path) -> io::Result<String> {
    let mut hash = Sha256::new();
    io::copy(&mut File::open(path)?, &mut hash)?;
    Ok(format!("{:x}", hash.finalize()))
}

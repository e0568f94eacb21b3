//! What makes later starts quick, on disk and shared by every process of a user: compiled graphs
//! and packed weights.
//!
//! An entry is two files named after its key: the data (`.vmfb`, `.weights`), and a `.json` with
//! its length and checksums, written last. An entry counts only if the two agree, so that whatever
//! was interrupted or damaged is made again. Writers hold the entry's `.lock`; readers need none,
//! for data that counts is replaced or removed, but never written to.

mod key;
mod seal;
mod writer;

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use checkpoint::FileStamp;
use serde::{Deserialize, Serialize};

pub use key::{Key, KeyParts, WeightsKeyParts};
pub use writer::Writer;

use crate::{Error, Result};
use seal::{Extent, Seal};

/// A folder of compiled graphs and packed weights.
#[derive(Debug, Clone)]
pub struct Cache {
    folder: PathBuf,
}

/// What the data of an entry is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Kind {
    /// A graph, compiled. All of it is verified whenever it is looked up: it will be executed.
    #[default]
    Graph,
    /// The weights of a model as they lie in memory. They are as large as a model, and mapped, not
    /// read: a look-up verifies a sample of them, [`Cache::verify`] everything.
    Weights,
}

/// How long an entry is kept that only an older build, or one for another CPU, would ask for: two that are used in turn
/// keep theirs.
const LEFT: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// What an entry is, for people who list the cache.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Label {
    /// What its data is.
    pub kind: Kind,
    /// Which graph ("model" on CPUs, "step_8", "prompt_256" on GPUs) or which weights ("stored", "f32").
    pub name: String,
    /// The model it was made for.
    pub model: String,
    /// Which build of the compiler made it, where one did.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub compiler: String,
    /// The files it was made from, where it is the user's files that it depends on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<FileStamp>,
}

/// One entry in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheEntry {
    /// Its key.
    pub key: Key,
    /// What it is.
    pub label: Label,
    /// Its data.
    pub path: PathBuf,
    /// The size of the data in bytes.
    pub bytes: u64,
    /// When it was made.
    pub created: SystemTime,
    /// When it was last asked for.
    pub last_used: SystemTime,
}

/// The data of an entry that was looked up.
#[derive(Debug)]
pub struct Found {
    /// Its path; another process may remove the entry at any time.
    pub path: PathBuf,
    /// The open file whose contents were verified.
    pub file: File,
}

impl Kind {
    fn extension(self) -> &'static str {
        match self {
            Self::Graph => "vmfb",
            Self::Weights => "weights",
        }
    }
}

impl Label {
    /// What the model at `path`, a folder or a file, is called: its last part, and `owner/name` in a Hugging Face cache,
    /// where the last part is a commit.
    pub fn model_of(path: &Path) -> String {
        let of_hub = || {
            let snapshots = path.parent().filter(|it| it.ends_with("snapshots"))?;
            let repository = snapshots.parent()?.file_name()?.to_str()?;
            Some(repository.strip_prefix("models--")?.replacen("--", "/", 1))
        };
        let last = || path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        of_hub().unwrap_or_else(last)
    }

    /// Whether a file that the entry was made from has changed or is gone: then nobody asks for the
    /// entry any more, unless the model was moved.
    pub fn is_stale(&self) -> bool {
        !self.sources.iter().all(FileStamp::is_current)
    }

    /// Whether `self` is what those files used to be that `newer` is made from, and was last used before they changed
    /// (containers may have another model at the same path: what is used beside it is nobody's past), or what another
    /// build made of them, which nobody has used for [long](LEFT).
    fn gives_way_to(&self, newer: &Self, last_used: SystemTime) -> bool {
        let changed = newer.sources.iter().filter_map(|it| it.modified).max();
        let paths = |label: &Self| -> Vec<PathBuf> {
            label.sources.iter().map(|source| source.path.clone()).collect()
        };
        self.kind == newer.kind
            && !self.sources.is_empty()
            && paths(self) == paths(newer)
            && (changed >= Some(last_used) && self.is_stale()
                || self.name == newer.name && last_used.elapsed().is_ok_and(|it| it > LEFT))
    }
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
            // Whoever still makes this entry holds its lock.
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

    /// The data of `key`, if the cache holds it undamaged, as far as its [`Kind`] has that
    /// verified.
    pub fn get(&self, key: &Key) -> Option<Found> {
        let mut seal = self.seal(key)?;
        let path = self.file(key, seal.label.kind.extension());
        let file = File::open(&path).ok()?;
        let lasting = seal.is_lasting();
        let whole = !lasting || seal.label.kind == Kind::Graph;
        let extent = if whole { Extent::Everything } else { Extent::Sample };
        if !seal.fits(&file, extent).ok()? {
            return None;
        }
        // A cache that is read-only to us goes without what follows.
        if lasting {
            // The time of last use.
            if let Ok(seal) = File::options().append(true).open(self.file(key, "json")) {
                let _ = seal.set_modified(SystemTime::now());
            }
        } else {
            seal.make_lasting();
            let _ = self.write_seal(key, &seal);
        }
        Some(Found { path, file })
    }

    /// The data of `key`; where the cache lacks it, or holds it damaged, `make` writes it.
    ///
    /// When several threads or processes ask for the same key at once, one makes the entry and the
    /// others wait for it. A `make` that fails, or is killed, leaves the cache as it was.
    ///
    /// # Errors
    ///
    /// What `make` returned, or [`Error::Cache`] when the folder cannot be written or the disk is
    /// full: the caller may then do without the cache.
    pub fn get_or_make(
        &self,
        key: &Key,
        label: &Label,
        make: impl FnOnce(&mut Writer<'_>) -> Result<()>,
    ) -> Result<Found> {
        if let Some(found) = self.get(key) {
            self.relabel(key, label);
            return Ok(found);
        }
        let _lock = self.lock(key)?;
        // Another process may have made it while we waited for the lock.
        if let Some(found) = self.get(key) {
            return Ok(found);
        }
        self.remove(key, |rest| rest.ends_with(".tmp"))?;
        // What the model was before it changed, nobody will ask for: space for what it is.
        let _ = self.clear_if(|entry| entry.label.gives_way_to(label, entry.last_used));
        let mut writer = Writer::new(self, self.temporary(key)?);
        make(&mut writer).map_err(|e| self.explain(e))?;
        let (data, sums, bytes) = writer.finish()?;
        if bytes == 0 {
            return Err(self.error(format!("nothing was written for {}", label.name)));
        }
        let seal = Seal::new(label.clone(), bytes, sums, data.as_file())
            .map_err(|e| self.failed("cannot write an entry", e))?;
        let path = self.file(key, label.kind.extension());
        let file =
            data.persist(&path).map_err(|e| self.failed("cannot write an entry", e.error))?;
        self.write_seal(key, &seal)?;
        Ok(Found { path, file })
    }

    /// Whether all data of the entry is what was written: reads it from beginning to end.
    ///
    /// # Errors
    ///
    /// [`Error::Cache`] when it cannot be read.
    pub fn verify(&self, entry: &CacheEntry) -> Result<bool> {
        let unreadable = |e| self.failed("cannot read an entry", e);
        let Some(seal) = self.seal(&entry.key) else { return Ok(false) };
        let file = match File::open(&entry.path) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(false),
            file => file.map_err(unreadable)?,
        };
        seal.fits(&file, Extent::Everything).map_err(unreadable)
    }

    /// Every complete entry, the latest used first. Contents are not verified.
    ///
    /// # Errors
    ///
    /// [`Error::Cache`] when the folder cannot be read.
    pub fn entries(&self) -> Result<Vec<CacheEntry>> {
        let entry = |key: Key, seal_path: PathBuf| {
            let seal = self.seal(&key)?;
            let path = self.file(&key, seal.label.kind.extension());
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

    /// Every key with files that make no entry, as its `.json` cannot be read or its data is gone, and how many bytes
    /// they have.
    ///
    /// # Errors
    ///
    /// [`Error::Cache`] when the folder cannot be read.
    pub fn fragments(&self) -> Result<Vec<(Key, u64)>> {
        let complete: Vec<_> = self.entries()?.into_iter().map(|entry| entry.key).collect();
        let mut fragments: Vec<(Key, u64)> = Vec::new();
        for (key, rest, path) in self.scan()? {
            // Those of an entry that is being made.
            let making = rest == ".lock" || rest.ends_with(".tmp");
            let Some(metadata) = fs::metadata(path).ok().filter(|_| !making) else { continue };
            match fragments.last_mut() {
                Some((last, bytes)) if *last == key => *bytes += metadata.len(),
                _ if complete.contains(&key) => {}
                _ => fragments.push((key, metadata.len())),
            }
        }
        Ok(fragments)
    }

    /// Removes what there is of `key`, unless it is being made at the moment; returns whether it is gone.
    ///
    /// # Errors
    ///
    /// As [`clear`](Self::clear).
    pub fn discard(&self, key: &Key) -> Result<bool> {
        self.clear_keys(std::slice::from_ref(key))?;
        Ok(self.is_gone(key))
    }

    /// Whether there is neither data of `key` nor what describes it.
    pub fn is_gone(&self, key: &Key) -> bool {
        !["json", "vmfb", "weights"].iter().any(|it| self.file(key, it).exists())
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

    /// Removes every entry except those being made at the moment, and what is left of damaged
    /// ones; returns how many bytes that freed. Files that are not the cache's stay, and sessions
    /// keep the weights that they have mapped.
    ///
    /// # Errors
    ///
    /// [`Error::Cache`] when the folder cannot be read or a file cannot be removed.
    pub fn clear(&self) -> Result<u64> {
        let mut keys: Vec<_> = self.scan()?.into_iter().map(|(key, ..)| key).collect();
        keys.dedup();
        self.clear_keys(&keys)
    }

    /// As [`clear`](Self::clear), but only the complete entries that `which` picks.
    ///
    /// # Errors
    ///
    /// As [`clear`](Self::clear).
    pub fn clear_if(&self, which: impl Fn(&CacheEntry) -> bool) -> Result<u64> {
        let picked = self.entries()?.into_iter().filter(which);
        self.clear_keys(&picked.map(|entry| entry.key).collect::<Vec<_>>())
    }

    fn clear_keys(&self, keys: &[Key]) -> Result<u64> {
        let before = self.total_bytes()?;
        for key in keys {
            if let Some(_lock) = self.try_lock(key)? {
                // The lock goes last; whoever waits for it notices that it is gone.
                self.remove(key, |rest| rest != ".lock")?;
                self.remove(key, |rest| rest == ".lock")?;
            }
        }
        Ok(before.saturating_sub(self.total_bytes()?))
    }

    fn file(&self, key: &Key, extension: &str) -> PathBuf {
        self.folder.join(format!("{key}.{extension}"))
    }

    fn seal(&self, key: &Key) -> Option<Seal> {
        serde_json::from_slice(&fs::read(self.file(key, "json")).ok()?).ok()
    }

    fn write_seal(&self, key: &Key, seal: &Seal) -> Result<()> {
        let unwritable = |e| self.failed("cannot write an entry", e);
        let file = self.temporary(key)?;
        let json = serde_json::to_vec(seal).map_err(io::Error::from).map_err(unwritable)?;
        fs::write(file.path(), json).map_err(unwritable)?;
        file.persist(self.file(key, "json")).map_err(|e| unwritable(e.error))?;
        Ok(())
    }

    /// Notes where a model is now that was moved.
    fn relabel(&self, key: &Key, label: &Label) {
        if let Some(mut seal) = self.seal(key)
            && seal.label != *label
            && let Ok(Some(_lock)) = self.try_lock(key)
        {
            seal.label = label.clone();
            let _ = self.write_seal(key, &seal);
        }
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
    fn temporary(&self, key: &Key) -> Result<tempfile::NamedTempFile> {
        tempfile::Builder::new()
            .prefix(&format!("{key}."))
            .suffix(".tmp")
            .tempfile_in(&self.folder)
            .map_err(|e| self.failed("cannot write in the folder", e))
    }

    /// Waits until this is the only one that writes the entry.
    fn lock(&self, key: &Key) -> Result<File> {
        let failed = |e| self.failed("cannot lock an entry", e);
        loop {
            let file = self.lock_file(key)?;
            file.lock().map_err(failed)?;
            if self.is_current(key, &file).map_err(failed)? {
                return Ok(file);
            }
        }
    }

    /// The lock of `key` if nobody holds it.
    fn try_lock(&self, key: &Key) -> Result<Option<File>> {
        let failed = |e| self.failed("cannot lock an entry", e);
        let file = self.lock_file(key)?;
        match file.try_lock() {
            Ok(()) => Ok(self.is_current(key, &file).map_err(failed)?.then_some(file)),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(failed(error)),
        }
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

    /// What a failed `make` means for the cache: a full disk is ours to explain.
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

/// Whether the disk is full, or the part of it that one may have.
pub(crate) fn is_full(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

/// Seconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

//! The folder: one file for each page.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use twox_hash::XxHash3_64;

use crate::cache::is_full;
use crate::{Error, Result};

/// What a page is called: a SHA-256.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Name(pub [u8; 32]);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Name {
    /// The checksum of `data` under this name: a file that was renamed is damaged.
    fn sum(&self, data: &[u8]) -> [u8; SUM] {
        let seed = u64::from_le_bytes(*self.0.first_chunk().expect("it has 32 bytes"));
        XxHash3_64::oneshot_with_seed(seed, data).to_le_bytes()
    }
}

/// What was found under a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    Nothing,
    Whole,
    /// It has been removed.
    Damaged,
}

/// Files of pages, of all models and processes.
#[derive(Debug)]
pub(super) struct Files {
    folder: PathBuf,
    most_bytes: u64,
    /// Bytes that may be written before the folder is looked through.
    room: Mutex<u64>,
}

/// Bytes of the checksum behind the data of a page.
const SUM: usize = 8;
const PAGE: &str = "kv";
const UNFINISHED: &str = "tmp";
/// After which time nobody works on an unfinished file any more.
const ABANDONED: Duration = Duration::from_secs(600);

impl Files {
    /// Parts that the most bytes are cut into: one is written between two looks through the folder, and as
    /// much is removed at least where something is.
    pub const ROOM: u64 = 16;

    /// The files in `folder`, `most_bytes` at most.
    ///
    /// # Errors
    ///
    /// A folder that cannot be made or written.
    pub fn open(folder: &Path, most_bytes: u64) -> Result<Self> {
        let files = Self { folder: folder.to_owned(), most_bytes, room: Mutex::new(0) };
        fs::create_dir_all(folder).and_then(|()| files.unfinished().map(drop)).map_err(
            |error| {
                let message = format!("shared pages cannot be written there: {error}");
                Error::Cache { path: folder.to_owned(), message }
            },
        )?;
        Ok(files)
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn path(&self, name: &Name) -> PathBuf {
        self.folder.join(format!("{name}.{PAGE}"))
    }

    fn unfinished(&self) -> io::Result<tempfile::NamedTempFile> {
        tempfile::Builder::new().suffix(&format!(".{UNFINISHED}")).tempfile_in(&self.folder)
    }

    /// Whether there is such a page, whole or not.
    pub fn has(&self, name: &Name) -> bool {
        self.path(name).exists()
    }

    /// Fills `data` with the page called `name`. One that is damaged is removed.
    pub fn read(&self, name: &Name, data: &mut [u8]) -> Found {
        let path = self.path(name);
        let Ok(mut file) = File::open(&path) else { return Found::Nothing };
        let mut whole = || -> io::Result<bool> {
            let mut sum = [0; SUM];
            if file.metadata()?.len() != (data.len() + SUM) as u64 {
                return Ok(false);
            }
            file.read_exact(data)?;
            file.read_exact(&mut sum)?;
            Ok(name.sum(data) == sum)
        };
        if whole().unwrap_or(false) {
            return Found::Whole;
        }
        // Another process may have been first.
        let _ = fs::remove_file(path);
        Found::Damaged
    }

    /// Notes that the pages called `names`, each behind the one before it, are used: the last of them is
    /// the first to go.
    pub fn touch(&self, names: &[Name]) {
        for name in names.iter().rev() {
            // One that has been removed meanwhile need not be noted.
            if let Ok(file) = File::options().append(true).open(self.path(name)) {
                let _ = file.set_modified(SystemTime::now());
            }
        }
    }

    /// Writes a page, from now on called `name`. Before others go for it, `note_use` has to say which are used.
    ///
    /// # Errors
    ///
    /// That of the disk. There is nothing under this name then, or what was.
    pub fn write(&self, name: &Name, data: &[u8], note_use: impl FnOnce()) -> io::Result<()> {
        let mut room = self.room.lock().expect("nothing panics that holds it");
        let bytes = (data.len() + SUM) as u64;
        let mut note_use = Some(note_use);
        if *room < bytes {
            note_use.take().into_iter().for_each(|note| note());
            self.shrink(self.most_bytes - self.most_bytes / Self::ROOM)?;
            *room = self.most_bytes / Self::ROOM;
        }
        *room = room.saturating_sub(bytes);
        match self.write_once(name, data) {
            Err(error) if is_full(&error) => {
                note_use.take().into_iter().for_each(|note| note());
                // Less than it may have: others filled the disk.
                let there = self.pages()?.iter().map(|it| it.bytes).sum::<u64>();
                self.shrink(there - there / Self::ROOM)?;
                self.write_once(name, data)
            }
            written => written,
        }
    }

    fn write_once(&self, name: &Name, data: &[u8]) -> io::Result<()> {
        let mut file = match self.unfinished() {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                fs::create_dir_all(&self.folder)?;
                self.unfinished()?
            }
            file => file?,
        };
        file.write_all(data)?;
        file.write_all(&name.sum(data))?;
        file.persist(self.path(name)).map_err(|it| it.error)?;
        Ok(())
    }

    /// Removes the least recently used pages until those that are left take `most` bytes at most, and what
    /// processes left unfinished that were killed.
    fn shrink(&self, most: u64) -> io::Result<()> {
        let mut pages = self.pages()?;
        let mut bytes: u64 = pages.iter().map(|it| it.bytes).sum();
        pages.sort_unstable_by_key(|it| it.used);
        for page in pages {
            if bytes <= most {
                break;
            }
            // Other processes do the same.
            let _ = fs::remove_file(page.path);
            bytes -= page.bytes;
        }
        Ok(())
    }

    /// All pages; removes unfinished files that nobody works on.
    fn pages(&self) -> io::Result<Vec<Listed>> {
        let mut pages = Vec::new();
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(pages),
            entries => entries?,
        };
        for entry in entries {
            let path = entry?.path();
            // It may be gone since.
            let Ok(metadata) = fs::metadata(&path) else { continue };
            let Ok(used) = metadata.modified() else { continue };
            match path.extension().and_then(|it| it.to_str()) {
                Some(PAGE) => pages.push(Listed { used, bytes: metadata.len(), path }),
                Some(UNFINISHED) if used.elapsed().is_ok_and(|it| it > ABANDONED) => {
                    let _ = fs::remove_file(path);
                }
                _ => {}
            }
        }
        Ok(pages)
    }
}

/// A page in the folder.
struct Listed {
    used: SystemTime,
    bytes: u64,
    path: PathBuf,
}

//! Pages of the KV cache that outlive a process: files that all processes of a machine share.
//!
//! A full page of 64 tokens is a file. Its name is a SHA-256 of everything that its bits depend on: the
//! model and its weights, how they are kept, the kind of processor, the build of this program, and all
//! tokens up to the page's last one. On CPUs steps are [batch-invariant](crate::engine), so that a page that
//! another process has left, before a restart or beside this one, is the page that this one would compute;
//! on GPUs it differs from that as a page of the prefix cache does. Behind the data lies a checksum, which
//! notices what disks and crashes do: a damaged file is removed, and its tokens are run.
//!
//! Nobody waits for the disk. Pages are written by a thread, under another name until they are whole, and
//! where it does not keep up they are left out. When the files take more than they may, those that were
//! least recently used go; of a prompt its last pages first, for they are found only behind the others.

mod files;

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use kernels::KV_BLOCK;
use sha2::{Digest, Sha256};

pub(crate) use self::files::Name;
use self::files::{Files, Found};
use crate::cache::Key;
use crate::{Error, Event, Observer, Result};

/// Where pages are kept for other processes and later ones.
#[derive(Clone)]
#[non_exhaustive]
pub struct KvShare {
    /// The folder; it is made if it is not there. Models may share it. Who can read it can find out whether
    /// the texts that he guesses were asked.
    pub folder: PathBuf,
    /// Most that its files take, bytes. Each process sees to it, for all of them.
    pub most_bytes: u64,
    /// Told when pages cannot be kept.
    pub observer: Option<Observer>,
}

impl KvShare {
    /// Pages in `folder`, 4 GiB of them at most.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into(), most_bytes: 4 << 30, observer: None }
    }
}

impl fmt::Debug for KvShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { folder, most_bytes, observer: _ } = self;
        f.debug_struct("KvShare")
            .field("folder", folder)
            .field("most_bytes", most_bytes)
            .finish_non_exhaustive()
    }
}

/// What became of pages since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Statistics {
    /// Tokens of prompts that were looked up: those that the engine's own prefix cache does not have in whole pages.
    pub tokens_looked_up: u64,
    /// Tokens of these that were found.
    pub tokens_found: u64,
    /// Pages that were written.
    pub kept: u64,
    /// Pages that were not, for the disk was too slow, or full.
    pub lost: u64,
    /// Files that were not what had been written, and were removed.
    pub damaged: u64,
}

#[derive(Debug, Default)]
struct Counts {
    looked_up: AtomicU64,
    found: AtomicU64,
    kept: AtomicU64,
    lost: AtomicU64,
    damaged: AtomicU64,
}

/// The pages of one model that are kept.
pub(crate) struct SharedPages {
    files: Arc<Files>,
    /// Of all that a page's name has before its tokens.
    identity: Sha256,
    /// `None` when it is dropped.
    queue: Option<SyncSender<Note>>,
    /// Pages in it.
    queued: Arc<AtomicUsize>,
    writer: Option<JoinHandle<()>>,
    counts: Arc<Counts>,
    /// The page that was read last.
    page: Vec<u8>,
}

/// What the writer is told.
enum Note {
    /// The last of these pages is to be written; it is behind the others.
    Keep { names: Vec<Name>, data: Vec<u8> },
    /// Pages, each behind the one before it, are used.
    Used(Vec<Name>),
}

/// Pages of a prompt that other processes may have left, while they are read one after the other.
#[derive(Debug, Default)]
pub(crate) struct SharedPrefix {
    /// Of all pages of the prompt up to the last that may be there.
    pub names: Vec<Name>,
    /// How many of them a sequence had before.
    pub held: usize,
    /// How many it has now.
    pub end: usize,
}

impl SharedPrefix {
    /// Whether one more may be there.
    pub fn has_more(&self) -> bool {
        self.end < self.names.len()
    }
}

/// Bytes of pages on their way, about.
const QUEUED: usize = 64 << 20;
/// Most notes that the writer is behind.
const NOTES: usize = 1024;

impl SharedPages {
    /// The pages of `page_bytes` bytes of the model that `identity` tells from all others.
    ///
    /// # Errors
    ///
    /// A folder that cannot be made or written, or in which no page may lie.
    pub fn open(share: &KvShare, identity: &Key, page_bytes: usize) -> Result<Self> {
        let least = Files::ROOM * page_bytes as u64;
        if share.most_bytes < least {
            return Err(Error::Unsupported(format!(
                "{} bytes for shared pages: a page of {KV_BLOCK} tokens takes {page_bytes}, and {} of them \
                 are the least ({least} bytes)",
                share.most_bytes,
                Files::ROOM
            )));
        }
        let files = Arc::new(Files::open(&share.folder, share.most_bytes)?);
        let counts = Arc::new(Counts::default());
        let (queue, notes) = sync_channel(NOTES);
        let queued = Arc::new(AtomicUsize::new(0));
        let writer = {
            let (files, counts, observer) =
                (Arc::clone(&files), Arc::clone(&counts), share.observer.clone());
            let waiting = Arc::clone(&queued);
            let write = move || write_all(&files, &counts, observer.as_ref(), &notes, &waiting);
            let thread = thread::Builder::new().name("kv-share".into());
            thread.spawn(write).map_err(Error::io(&share.folder))?
        };
        Ok(Self {
            files,
            identity: Sha256::new_with_prefix(identity.to_string()),
            queue: Some(queue),
            queued,
            writer: Some(writer),
            counts,
            page: vec![0; page_bytes],
        })
    }

    /// The names of the full pages of `tokens`, in their order.
    pub fn names(&self, tokens: &[u32]) -> Vec<Name> {
        let mut hash = self.identity.clone();
        let pages = tokens.chunks_exact(KV_BLOCK);
        let names = pages.map(|tokens| {
            tokens.iter().for_each(|token| hash.update(token.to_le_bytes()));
            Name(hash.clone().finalize().into())
        });
        names.collect()
    }

    /// The data of the page called `name`, if it is there and whole.
    pub fn find(&mut self, name: &Name) -> Option<&[u8]> {
        match self.files.read(name, &mut self.page) {
            Found::Whole => Some(&self.page),
            Found::Nothing => None,
            Found::Damaged => {
                self.counts.damaged.fetch_add(1, Relaxed);
                None
            }
        }
    }

    /// Whether there is a page called `name`, whole or not.
    pub fn has(&self, name: &Name) -> bool {
        self.files.has(name)
    }

    /// `tokens` tokens are looked up.
    pub fn look_up(&self, tokens: usize) {
        self.counts.looked_up.fetch_add(tokens as u64, Relaxed);
    }

    /// The last `found` of the pages called `names` were found.
    pub fn found(&self, names: &[Name], found: usize) {
        self.counts.found.fetch_add((found * KV_BLOCK) as u64, Relaxed);
        if found > 0 {
            self.touch(names);
        }
    }

    /// The pages called `names` are used, each behind the one before it. The writer notes it, if it is not behind.
    pub fn touch(&self, names: &[Name]) {
        if !names.is_empty() && self.has_room() {
            let _ = self.tell(Note::Used(names.to_vec()));
        }
    }

    /// Whether one more page may be on its way.
    fn has_room(&self) -> bool {
        self.queued.load(Relaxed) < (QUEUED / self.page.len()).max(1)
    }

    /// Whether the writer, which may be behind, is told.
    fn tell(&self, note: Note) -> bool {
        self.queue.as_ref().is_some_and(|queue| queue.try_send(note).is_ok())
    }

    /// Keeps the last of the pages called `names`, unless it is kept: `read` fills in its data.
    pub fn keep(&self, names: &[Name], read: impl FnOnce(&mut [u8]) -> Result<()>) {
        if names.last().is_none_or(|name| self.files.has(name)) {
            return;
        }
        let mut data = vec![0; self.page.len()];
        if !self.has_room() || read(&mut data).is_err() {
            self.counts.lost.fetch_add(1, Relaxed);
            return;
        }
        self.queued.fetch_add(1, Relaxed);
        if !self.tell(Note::Keep { names: names.to_vec(), data }) {
            self.queued.fetch_sub(1, Relaxed);
            self.counts.lost.fetch_add(1, Relaxed);
        }
    }

    /// What became of pages since the start.
    pub fn statistics(&self) -> Statistics {
        let Counts { looked_up, found, kept, lost, damaged } = &*self.counts;
        Statistics {
            tokens_looked_up: looked_up.load(Relaxed),
            tokens_found: found.load(Relaxed),
            kept: kept.load(Relaxed),
            lost: lost.load(Relaxed),
            damaged: damaged.load(Relaxed),
        }
    }
}

impl Drop for SharedPages {
    /// Waits until the pages are written that are on their way.
    fn drop(&mut self) {
        self.queue = None;
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

/// Pages that are used and not noted yet, each row of them by its last.
#[derive(Default)]
struct Used(HashMap<Name, Vec<Name>>);

impl Used {
    /// Adds pages, each behind the one before it.
    fn add(&mut self, names: Vec<Name>) {
        let Some((&last, before)) = names.split_last() else { return };
        if let Some(before) = before.last() {
            self.0.remove(before);
        }
        self.0.insert(last, names);
    }

    fn note(&mut self, files: &Files) {
        self.0.drain().for_each(|(_, names)| files.touch(&names));
    }
}

/// Writes what comes, until nothing more does. Says once when that fails, and again when it fails after it
/// went well.
fn write_all(
    files: &Files,
    counts: &Counts,
    observer: Option<&Observer>,
    notes: &Receiver<Note>,
    queued: &AtomicUsize,
) {
    let mut fails = false;
    let mut used = Used::default();
    // What is used is noted while nothing else is to be done: a prompt's pages come one by one, and each is behind all
    // of those before it.
    let next = |used: &mut Used| {
        notes.try_recv().or_else(|_| {
            used.note(files);
            notes.recv()
        })
    };
    while let Ok(note) = next(&mut used) {
        let (names, data) = match note {
            Note::Keep { names, data } => (names, data),
            Note::Used(names) => {
                used.add(names);
                continue;
            }
        };
        queued.fetch_sub(1, Relaxed);
        // Another sequence or process may have been first.
        let Some(name) = names.last().filter(|name| !files.has(name)) else { continue };
        let Err(error) = files.write(name, &data, || used.note(files)) else {
            used.add(names);
            counts.kept.fetch_add(1, Relaxed);
            fails = false;
            continue;
        };
        counts.lost.fetch_add(1, Relaxed);
        if let Some(observer) = observer.filter(|_| !fails) {
            let reason = format!("{}: {error}", files.folder().display());
            observer(Event::NotKept { what: "pages of the KV cache".into(), reason });
        }
        fails = true;
    }
}

#[cfg(test)]
mod tests;

//! One open weight file, mapped or read.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::SystemTime;

use memmap2::{Mmap, MmapOptions};
use sha2::{Digest, Sha256};

use crate::header::{self, Entry};
use crate::random::Random;
use crate::tensor::Stored;
use crate::{Dtype, Error, FileStamp, LoadMode, Result, Tensor};

/// How many places of a file tell its data from others'.
const SAMPLES: u128 = 64;
/// Bytes of each.
const SAMPLE: u64 = 64;

/// A weight file whose header has been read.
#[derive(Debug)]
pub(crate) struct WeightFile {
    pub path: PathBuf,
    size: u64,
    modified: Option<SystemTime>,
    /// SHA-256 of the header, and of samples of the data.
    contents: String,
    access: Access,
}

#[derive(Debug)]
enum Access {
    Mapped(Mmap),
    /// One seek-and-read at a time.
    Read(Mutex<File>),
    /// Of no file.
    Memory(Vec<u8>),
}

impl WeightFile {
    /// Opens the safetensors file at `path` and reads its header.
    pub fn open(path: PathBuf, mode: LoadMode) -> Result<(Self, BTreeMap<String, Entry>)> {
        let mut file = File::open(&path).map_err(Error::io(&path))?;
        let metadata = file.metadata().map_err(Error::io(&path))?;
        let bytes = metadata.len();
        let json = read_header(&mut file, &path, bytes)?;
        let wrong = |message| Error::Checkpoint { path: path.clone(), message };
        let tensors = header::parse(&json, bytes).map_err(wrong)?;
        let header = format!("{:x}", Sha256::digest(&json));
        Ok((Self::new(path, file, &header, mode)?, tensors))
    }

    /// The file at `path`, whose header has been read and has this digest.
    pub fn new(path: PathBuf, mut file: File, header: &str, mode: LoadMode) -> Result<Self> {
        let metadata = file.metadata().map_err(Error::io(&path))?;
        let (bytes, modified) = (metadata.len(), metadata.modified().ok());
        let contents = sampled(&mut file, bytes, header).map_err(Error::io(&path))?;
        let access = match mode {
            LoadMode::Mmap => Access::Mapped(map(&file, bytes).map_err(Error::io(&path))?),
            LoadMode::Read | LoadMode::Random => Access::Read(Mutex::new(file)),
        };
        Ok(Self { path, size: bytes, modified, contents, access })
    }

    /// Made-up weights, that belong to the configuration at `path`.
    pub fn random(path: PathBuf, random: Random) -> Result<(Self, BTreeMap<String, Entry>)> {
        let metadata = std::fs::metadata(&path).map_err(Error::io(&path))?;
        let Random { tensors, bytes: memory, digest: contents } = random;
        let (bytes, modified) = (metadata.len(), metadata.modified().ok());
        let access = Access::Memory(memory);
        Ok((Self { path, size: bytes, modified, contents, access }, tensors))
    }

    /// The tensor at `entry`.
    pub fn tensor<'a>(&'a self, entry: &'a Entry, dtype: Dtype) -> Result<Tensor<'a>> {
        let stored = self.bytes(entry)?;
        Ok(Tensor::stored(&self.path, dtype, &entry.shape, entry.rows, stored))
    }

    /// The bytes at `entry`.
    pub fn bytes(&self, entry: &Entry) -> Result<Stored<'_>> {
        Ok(match &self.access {
            // The header was checked against the length that is mapped.
            Access::Mapped(map) => {
                let start = entry.start as usize;
                let bytes = Cow::Borrowed(&map[start..entry.end as usize]);
                Stored { bytes, map: Some((map, start)) }
            }
            Access::Memory(bytes) => {
                let bytes = Cow::Borrowed(&bytes[entry.start as usize..entry.end as usize]);
                Stored { bytes, map: None }
            }
            Access::Read(file) => {
                let mut bytes = vec![0; (entry.end - entry.start) as usize];
                let mut file = file.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                file.seek(SeekFrom::Start(entry.start))
                    .and_then(|_| file.read_exact(&mut bytes))
                    .map_err(|e| Error::shortened(&self.path, e))?;
                Stored { bytes: Cow::Owned(bytes), map: None }
            }
        })
    }

    pub fn stamp(&self) -> FileStamp {
        FileStamp {
            path: self.path.clone(),
            bytes: self.size,
            modified: self.modified,
            contents: self.contents.clone(),
        }
    }
}

fn read_header(file: &mut File, path: &Path, bytes: u64) -> Result<Vec<u8>> {
    let wrong = |message| Error::Checkpoint { path: path.into(), message };
    if bytes < header::LENGTH_BYTES {
        return Err(wrong(format!(
            "truncated: the file has {bytes} bytes, less than a safetensors header; download it \
             again"
        )));
    }
    let mut first = [0; header::LENGTH_BYTES as usize];
    file.read_exact(&mut first).map_err(|e| Error::shortened(path, e))?;
    let length = header::length(first, bytes).map_err(wrong)?;
    let mut json = vec![0; length as usize];
    file.read_exact(&mut json).map_err(|e| Error::shortened(path, e))?;
    Ok(json)
}

/// The SHA-256 of `header` and of [`SAMPLES`] of `file`, spread over its `bytes`: models that are trained further from
/// one differ in no name, size or shape, and in an image of a container not in their times either.
fn sampled(file: &mut File, bytes: u64, header: &str) -> std::io::Result<String> {
    let mut digest = Sha256::new_with_prefix(header);
    for at in 0..SAMPLES {
        let start = (u128::from(bytes) * at / SAMPLES) as u64;
        file.seek(SeekFrom::Start(start))?;
        let mut sample = Vec::with_capacity(SAMPLE as usize);
        Read::take(&mut *file, SAMPLE).read_to_end(&mut sample)?;
        digest.update(&sample);
    }
    Ok(format!("{:x}", digest.finalize()))
}

fn map(file: &File, bytes: u64) -> std::io::Result<Mmap> {
    let length = usize::try_from(bytes).map_err(std::io::Error::other)?;
    // SAFETY: the mapping is private and only read. That nobody writes to or shortens the file
    // meanwhile is what `LoadMode::Mmap` asks of the caller and documents; its length is that of
    // the open file, so no page lies behind the end.
    let map = unsafe { MmapOptions::new().len(length).map(file)? };
    Ok(map)
}

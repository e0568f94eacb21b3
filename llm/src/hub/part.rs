//! A file that is being brought, and what has come of it so far.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

/// The beginning of a file, as `<blob>.incomplete` until all of it is there.
#[derive(Debug)]
pub struct Part {
    file: File,
    path: PathBuf,
    length: u64,
    /// Of what there is.
    hash: Sha256,
}

impl Part {
    /// What there is of `blob`; `shown` is told how many bytes of it have been read.
    ///
    /// # Errors
    ///
    /// It cannot be read or written.
    pub fn open(blob: &Path, shown: impl Fn(u64)) -> Result<Self> {
        let mut name = blob.as_os_str().to_owned();
        name.push(".incomplete");
        let path = PathBuf::from(name);
        let open = || {
            fs::create_dir_all(blob.parent().unwrap_or(blob))?;
            let mut options = File::options();
            let mut file =
                options.create(true).truncate(false).read(true).write(true).open(&path)?;
            let (mut hash, mut length, mut block) = (Sha256::new(), 0, vec![0; 1 << 20]);
            loop {
                match file.read(&mut block)? {
                    0 => return Ok::<_, io::Error>((file, length, hash)),
                    read => {
                        hash.update(&block[..read]);
                        length += read as u64;
                        shown(length);
                    }
                }
            }
        };
        let (file, length, hash) = open().with_context(|| path.display().to_string())?;
        Ok(Self { file, path, length, hash })
    }

    /// Bytes that there are.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Forgets all of it.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub fn clear(&mut self) -> Result<()> {
        let clear = self.file.set_len(0).and_then(|()| self.file.seek(SeekFrom::Start(0)));
        clear.with_context(|| self.path.display().to_string())?;
        (self.length, self.hash) = (0, Sha256::new());
        Ok(())
    }

    /// Adds what follows.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub fn push(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).with_context(|| self.path.display().to_string())?;
        self.hash.update(bytes);
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// The SHA-256 of what there is, as lower-case hex.
    pub fn sha256(&self) -> String {
        format!("{:x}", self.hash.clone().finalize())
    }

    /// Makes it `blob`.
    ///
    /// # Errors
    ///
    /// The folder cannot be written.
    pub fn place(self, blob: &Path) -> Result<()> {
        let place = self.file.sync_data().and_then(|()| fs::rename(&self.path, blob));
        place.with_context(|| self.path.display().to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn what_is_there_counts_and_more_is_added_at_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let blob = folder.path().join("blobs/e");
        let mut part = Part::open(&blob, |_| panic!("there is nothing")).unwrap();
        part.push(b"abc").unwrap();
        let shown = Cell::new(0);
        let mut part = Part::open(&blob, |read| shown.set(read)).unwrap();
        assert_eq!((part.length(), shown.get()), (3, 3));
        part.push(b"def").unwrap();
        assert_eq!(part.sha256(), format!("{:x}", Sha256::digest("abcdef")));
        part.clear().unwrap();
        part.push(b"xy").unwrap();
        assert_eq!(part.sha256(), format!("{:x}", Sha256::digest("xy")));
        part.place(&blob).unwrap();
        assert_eq!(fs::read_to_string(&blob).unwrap(), "xy");
        assert_eq!(folder.path().join("blobs").read_dir().unwrap().count(), 1);
    }
}

//! Writing the data of an entry.

use std::fmt;
use std::io::Write;

use tempfile::NamedTempFile;

use super::Cache;
use super::seal::{BLOCK, Sums};
use crate::Result;

/// Bytes that are collected before they go to the file: they stay in the processor's cache between
/// being made, summed and written.
const COLLECTED: usize = 4 * BLOCK;

/// The data of an entry that is being made, from the first byte to the last.
pub struct Writer<'a> {
    cache: &'a Cache,
    file: NamedTempFile,
    collected: Vec<u8>,
    sums: Sums,
    written: u64,
}

impl fmt::Debug for Writer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").field("written", &self.written).finish_non_exhaustive()
    }
}

impl<'a> Writer<'a> {
    pub(super) fn new(cache: &'a Cache, file: NamedTempFile) -> Self {
        Self { cache, file, collected: Vec::new(), sums: Sums::default(), written: 0 }
    }

    /// The next `bytes` bytes, zero until they are filled.
    ///
    /// # Errors
    ///
    /// [`Error::Cache`](crate::Error::Cache) when the disk is full.
    pub fn next(&mut self, bytes: usize) -> Result<&mut [u8]> {
        if self.collected.len() + bytes > COLLECTED {
            self.flush(self.collected.len() / BLOCK * BLOCK)?;
        }
        let start = self.collected.len();
        self.collected.resize(start + bytes, 0);
        Ok(&mut self.collected[start..])
    }

    /// Appends `bytes`.
    ///
    /// # Errors
    ///
    /// As [`next`](Self::next).
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        for part in bytes.chunks(COLLECTED) {
            self.next(part.len())?.copy_from_slice(part);
        }
        Ok(())
    }

    /// Makes sure that the disk has room for `bytes` bytes in all.
    ///
    /// # Errors
    ///
    /// [`Error::Cache`](crate::Error::Cache) when it has not.
    pub fn expect(&self, bytes: u64) -> Result<()> {
        match fs4::available_space(&self.cache.folder) {
            Ok(free) if free < bytes => Err(self
                .cache
                .full(format!("{bytes} bytes are to be written, {free} are left on its disk"))),
            // Where the system does not say, writing will show.
            _ => Ok(()),
        }
    }

    pub(super) fn finish(mut self) -> Result<(NamedTempFile, Sums, u64)> {
        self.flush(self.collected.len())?;
        Ok((self.file, self.sums, self.written))
    }

    /// Writes the first `bytes` of what was collected: whole blocks, but at the end.
    fn flush(&mut self, bytes: usize) -> Result<()> {
        let now = &self.collected[..bytes];
        now.chunks(BLOCK).for_each(|block| self.sums.push(block));
        let written = self.file.as_file_mut().write_all(now);
        written.map_err(|e| self.cache.failed("cannot write an entry", e))?;
        self.written += bytes as u64;
        self.collected.drain(..bytes);
        Ok(())
    }
}

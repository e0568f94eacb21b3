//! Bytes of a file in order, none of them believed to be there before they are counted.

use std::io::Read;
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::{Error, Result};

/// The longest header that is read. Those of the largest vocabularies take a tenth of it.
const MAX_HEADER_BYTES: u64 = 1 << 28;
/// The longest key or name of a tensor, bytes.
const MAX_NAME_BYTES: u64 = 65_535;

/// Reads a header from its first byte on.
pub(super) struct Reader<'a, R> {
    from: R,
    path: &'a Path,
    /// Of the whole file.
    file_bytes: u64,
    /// Bytes that were read.
    pub at: u64,
    digest: Sha256,
}

impl<'a, R: Read> Reader<'a, R> {
    pub fn new(from: R, path: &'a Path, file_bytes: u64) -> Self {
        Self { from, path, file_bytes, at: 0, digest: Sha256::new() }
    }

    pub fn wrong(&self, message: impl Into<String>) -> Error {
        Error::Checkpoint { path: self.path.into(), message: message.into() }
    }

    /// Refuses `count` things of at least `bytes` bytes each if the file cannot hold them.
    pub fn expect(&self, count: u64, bytes: u64, what: &str) -> Result<()> {
        let needed = count.saturating_mul(bytes);
        let left = self.file_bytes - self.at;
        if needed > left {
            return Err(self.wrong(format!(
                "truncated or damaged: {what} takes at least {needed} bytes, the file has {left} \
                 left; download it again"
            )));
        }
        if self.at + needed > MAX_HEADER_BYTES {
            return Err(self.wrong(format!(
                "{what} makes its header longer than {MAX_HEADER_BYTES} bytes: the file is damaged"
            )));
        }
        Ok(())
    }

    /// `count` bytes of `what`.
    pub fn bytes(&mut self, count: u64, what: &str) -> Result<Vec<u8>> {
        self.expect(count, 1, what)?;
        let mut bytes = vec![0; count as usize];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        self.expect(N as u64, 1, what)?;
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<()> {
        self.from.read_exact(bytes).map_err(|e| Error::shortened(self.path, e))?;
        self.digest.update(&*bytes);
        self.at += bytes.len() as u64;
        Ok(())
    }

    pub fn u32(&mut self, what: &str) -> Result<u32> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub fn u64(&mut self, what: &str) -> Result<u64> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A string of UTF-8 with its length before it.
    pub fn string(&mut self, what: &str) -> Result<String> {
        let length = self.u64(what)?;
        let bytes = self.bytes(length, what)?;
        String::from_utf8(bytes)
            .map_err(|_| self.wrong(format!("{what} is not UTF-8: the file is damaged")))
    }

    /// A key, or the name of a tensor.
    pub fn name(&mut self, what: &str) -> Result<String> {
        let length = self.u64(what)?;
        if !(1..=MAX_NAME_BYTES).contains(&length) {
            return Err(self.wrong(format!(
                "{what} is {length} bytes long, not 1 to {MAX_NAME_BYTES}: the file is damaged"
            )));
        }
        let bytes = self.bytes(length, what)?;
        String::from_utf8(bytes)
            .map_err(|_| self.wrong(format!("{what} is not UTF-8: the file is damaged")))
    }

    /// The SHA-256 of what was read.
    pub fn digest(self) -> String {
        format!("{:x}", self.digest.finalize())
    }
}

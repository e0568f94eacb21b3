//! SHA-256 of files and streams.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::{Error, Result};

/// The SHA-256 of a file, lower-case hex.
///
/// # Errors
///
/// [`Error::Io`] when it cannot be read.
pub fn of_file(path: &Path) -> Result<String> {
    let file = File::open(path).map_err(Error::io("read", path))?;
    let mut hashing = Hashing::new(io::sink());
    copy(file, &mut hashing).map_err(Error::io("read", path))?;
    Ok(hashing.finish())
}

/// Copies with a buffer that suits files of hundreds of megabytes; returns the number of bytes.
///
/// # Errors
///
/// Those of reading and writing.
pub fn copy(mut from: impl Read, to: &mut impl Write) -> io::Result<u64> {
    let mut buffer = vec![0; 1 << 20];
    let mut total = 0;
    loop {
        let n = from.read(&mut buffer)?;
        if n == 0 {
            return Ok(total);
        }
        to.write_all(&buffer[..n])?;
        total += n as u64;
    }
}

/// A writer that hashes what passes through it.
#[derive(Debug)]
pub struct Hashing<W> {
    inner: W,
    hash: Sha256,
}

impl<W: Write> Hashing<W> {
    /// Hashes what is written to `inner`.
    pub fn new(inner: W) -> Self {
        Hashing { inner, hash: Sha256::new() }
    }

    /// The hash of everything written, lower-case hex.
    pub fn finish(self) -> String {
        self.hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.inner.write(bytes)?;
        self.hash.update(&bytes[..n]);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_the_known_vector() {
        let mut hashing = Hashing::new(io::sink());
        hashing.write_all(b"abc").unwrap();
        assert_eq!(
            hashing.finish(),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }
}

//! Files that arguments come from and results go to.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};

use anyhow::{Context, Result, ensure};

/// Files being read: several arguments may come from one, one after the other.
#[derive(Debug, Default)]
pub struct Files(HashMap<String, BufReader<File>>);

impl Files {
    /// The file at `path`, from its beginning or from where the last argument ended.
    ///
    /// # Errors
    ///
    /// The file's.
    pub fn open(&mut self, path: &str, from_beginning: bool) -> Result<&mut BufReader<File>> {
        if from_beginning || !self.0.contains_key(path) {
            let file = File::open(path).with_context(|| path.to_owned())?;
            self.0.insert(path.to_owned(), BufReader::new(file));
        }
        self.0.get_mut(path).context("the file was opened just now")
    }

    /// Whether nothing follows.
    ///
    /// # Errors
    ///
    /// The file's.
    pub fn at_end(file: &mut BufReader<File>) -> io::Result<bool> {
        Ok(file.fill_buf()?.is_empty())
    }

    /// The next `length` bytes.
    ///
    /// # Errors
    ///
    /// The file's, or there are fewer.
    pub fn read(file: &mut impl Read, length: usize) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        // Grown as they come: a damaged header may ask for any number.
        file.take(length as u64).read_to_end(&mut bytes)?;
        ensure!(bytes.len() == length, "{length} bytes wanted, and only {} are left", bytes.len());
        Ok(bytes)
    }
}

/// A file being written.
#[derive(Debug)]
pub struct Sink {
    path: String,
    file: BufWriter<File>,
}

impl Sink {
    /// What the text of an `--output` names: `@FILE` made anew, `+FILE` gone on with; `None` for
    /// `-` (printed) and nothing (ignored).
    ///
    /// # Errors
    ///
    /// The file's, or the text says something else.
    pub fn open(spec: &str) -> Result<Option<Self>> {
        let (append, path) = match spec.split_at_checked(1) {
            None => return Ok(None),
            Some(("-", "")) => return Ok(None),
            Some(("@", path)) => (false, path),
            Some(("+", path)) => (true, path),
            _ => anyhow::bail!(
                "--output {spec}: give - (print), nothing (ignore), @FILE.npy, @FILE for raw \
                 bytes, or +FILE to append"
            ),
        };
        let mut options = OpenOptions::new();
        options.create(true).write(true).append(append).truncate(!append);
        let file = options.open(path).with_context(|| path.to_owned())?;
        Ok(Some(Self { path: path.to_owned(), file: BufWriter::new(file) }))
    }

    /// Where it is.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Writes what is still in memory.
    ///
    /// # Errors
    ///
    /// The file's.
    pub fn finish(mut self) -> Result<()> {
        self.file.flush().with_context(|| self.path.clone())
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

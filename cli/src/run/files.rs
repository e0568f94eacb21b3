//! Files that arguments come from and results go to.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};

use anyhow::{Context, Result, ensure};

use crate::output::Waiting;

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

/// What becomes of a result.
#[derive(Debug)]
pub enum Sink {
    /// It is printed.
    Print,
    /// Nothing.
    Ignore,
    /// It goes to a file: an array where the name ends in `.npy`, else its bytes.
    File { path: String, file: Waiting },
}

impl Sink {
    /// What the text of an `--output` names: `@FILE` made anew, `+FILE` gone on with, `-` (printed) or
    /// nothing (ignored).
    ///
    /// # Errors
    ///
    /// The file's, or the text says something else.
    pub fn open(spec: &str) -> Result<Self> {
        let append = match spec.chars().next() {
            None => return Ok(Self::Ignore),
            Some('-') if spec == "-" => return Ok(Self::Print),
            Some('@') => false,
            Some('+') => true,
            Some(_) => anyhow::bail!(
                "--output {spec}: give - (print), nothing (ignore), @FILE.npy, @FILE for raw \
                 bytes, or +FILE to append"
            ),
        };
        let path = &spec[1..];
        let file = Waiting::open(path.as_ref(), append)?;
        Ok(Self::File { path: path.to_owned(), file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_says_what_becomes_of_a_result() {
        assert!(matches!(Sink::open("-").unwrap(), Sink::Print));
        assert!(matches!(Sink::open("").unwrap(), Sink::Ignore));
        for wrong in ["x.npy", "ä.npy", "-x", "--"] {
            let error = Sink::open(wrong).unwrap_err().to_string();
            assert!(error.contains(wrong) && error.contains("@FILE"), "{error}");
        }
    }
}

//! Vectors of texts as they are written, in the order of the texts: lines of JSON, or one array of NumPy's.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Seek, Write};

use serde::Serialize;
use serde_json::json;

/// What became of a text: its tokens and its vector, or why it has none.
pub type Outcome = Result<(usize, Vec<f32>), String>;

/// Where vectors go.
pub struct Vectors {
    format: Format,
    /// Texts that are written.
    written: usize,
    /// Those that have to wait for one before them.
    early: BTreeMap<usize, Outcome>,
}

enum Format {
    /// A line for each text, also for one without a vector.
    Lines(Box<dyn Write>),
    /// A row for each text; one without a vector has NaN.
    Array { file: BufWriter<File>, width: usize },
}

#[derive(Serialize)]
struct Line {
    index: usize,
    tokens: usize,
    embedding: Vec<f32>,
}

/// Bytes of the header of an array: what it says of any number of rows fits.
const HEADER: usize = 128;

impl Vectors {
    /// Lines of JSON.
    pub fn lines(to: impl Write + 'static) -> Self {
        Self::new(Format::Lines(Box::new(to)))
    }

    /// NumPy's format, version 1.0, of f32 `[texts, width]`.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn array(file: File, width: usize) -> io::Result<Self> {
        let mut file = BufWriter::new(file);
        file.write_all(&header(0, width))?;
        file.flush()?;
        Ok(Self::new(Format::Array { file, width }))
    }

    fn new(format: Format) -> Self {
        Self { format, written: 0, early: BTreeMap::new() }
    }

    /// Writes what became of text `index`, as soon as all before it are written.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn put(&mut self, index: usize, outcome: Outcome) -> io::Result<()> {
        self.early.insert(index, outcome);
        while let Some(outcome) = self.early.remove(&self.written) {
            self.format.write(self.written, outcome)?;
            self.written += 1;
        }
        Ok(())
    }

    /// Ends the file; how many texts it has, the first ones.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn finish(self) -> io::Result<usize> {
        if let Format::Array { file, width } = self.format {
            // Without what could not be written of a row: each is flushed.
            let (mut file, _) = file.into_parts();
            file.rewind()?;
            file.write_all(&header(self.written, width))?;
            file.flush()?;
        }
        Ok(self.written)
    }
}

impl Format {
    fn write(&mut self, index: usize, outcome: Outcome) -> io::Result<()> {
        match self {
            Self::Lines(out) => {
                let line = match outcome {
                    Ok((tokens, embedding)) => {
                        serde_json::to_string(&Line { index, tokens, embedding })?
                    }
                    Err(error) => json!({"index": index, "error": error}).to_string(),
                };
                writeln!(out, "{line}")?;
                out.flush()
            }
            Self::Array { file, width } => {
                let vector = outcome.map_or_else(|_| vec![f32::NAN; *width], |(_, vector)| vector);
                vector.iter().try_for_each(|value| file.write_all(&value.to_le_bytes()))?;
                file.flush()
            }
        }
    }
}

fn header(rows: usize, width: usize) -> Vec<u8> {
    let says = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {width}), }}");
    let before = [&b"\x93NUMPY\x01\x00"[..], &(HEADER as u16 - 10).to_le_bytes()].concat();
    [before, format!("{says:<0$}\n", HEADER - 11).into_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_array_has_the_rows_that_came_in_a_row() {
        let mut file = tempfile::tempfile().unwrap();
        let mut vectors = Vectors::array(file.try_clone().unwrap(), 2).unwrap();
        vectors.put(1, Ok((3, vec![3.0, 4.0]))).unwrap();
        vectors.put(0, Ok((3, vec![1.0, 2.0]))).unwrap();
        vectors.put(2, Err("no text".into())).unwrap();
        vectors.put(4, Ok((3, vec![9.0, 9.0]))).unwrap();
        assert_eq!(vectors.finish().unwrap(), 3);
        let mut bytes = Vec::new();
        file.rewind().unwrap();
        io::Read::read_to_end(&mut file, &mut bytes).unwrap();
        let (head, data) = bytes.split_at(HEADER);
        assert_eq!(head[8..10], [118, 0]);
        assert!(String::from_utf8_lossy(&head[10..]).contains("'shape': (3, 2), }"));
        assert_eq!(head[HEADER - 1], b'\n');
        let values = data.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        let values: Vec<_> = values.collect();
        assert_eq!(values[..4], [1.0, 2.0, 3.0, 4.0]);
        assert!(values.len() == 6 && values[4..].iter().all(|value| value.is_nan()));
        assert_eq!(header(usize::MAX, 1 << 20).len(), HEADER);
    }
}

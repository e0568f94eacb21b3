//! One safetensors file, written piece by piece: no tensor is in memory as a whole.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::num::NonZero;
use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::thread;

use half::{bf16, f16};
use safetensors::Dtype as Stored;
use safetensors::tensor::{Metadata, TensorInfo};

use super::Float;
use crate::architecture::Parameter;
use crate::{Error, Result, Tensor};

/// Elements of a piece, about.
const PIECE: usize = 1 << 22;

/// A tensor of the file.
pub(super) struct Part<'a> {
    pub parameter: &'a Parameter,
    pub tensor: Tensor<'a>,
    /// What is taken off its values.
    pub shift: f32,
}

/// Writes `parts` to a new file at `path`, as far as `wrote` lets it.
pub(super) fn write(
    path: &Path,
    parts: &[Part],
    dtype: Float,
    wrote: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<ControlFlow<()>> {
    let mut file = File::create_new(path).map_err(Error::io(path))?;
    file.write_all(&header(path, parts, dtype)?).map_err(Error::io(path))?;
    for part in parts {
        let rows = part.parameter.shape[0];
        let columns = part.parameter.elements() / rows;
        let step = (PIECE / columns).max(1);
        for first in (0..rows).step_by(step) {
            let bytes = part.rows(first..rows.min(first + step), columns, dtype)?;
            file.write_all(&bytes).map_err(Error::io(path))?;
            if wrote(bytes.len() as u64).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        part.tensor.release(0..part.tensor.bytes().len());
    }
    // Before a folder gets its name, what it has is on the disk.
    file.sync_all().map_err(Error::io(path))?;
    Ok(ControlFlow::Continue(()))
}

/// The header's length and the header, of whole words.
fn header(path: &Path, parts: &[Part], dtype: Float) -> Result<Vec<u8>> {
    let dtype_of = match dtype {
        Float::F32 => Stored::F32,
        Float::F16 => Stored::F16,
        Float::BF16 => Stored::BF16,
    };
    let mut end = 0;
    let infos = parts.iter().map(|Part { parameter, .. }| {
        let start = end;
        end += dtype.bytes(parameter) as usize;
        let shape = parameter.shape.clone();
        let info = TensorInfo { dtype: dtype_of, shape, data_offsets: (start, end) };
        (parameter.name.clone(), info)
    });
    // What transformers wants to read there.
    let about = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let wrong = |message: String| Error::Checkpoint { path: path.into(), message };
    let header = Metadata::new(Some(about), infos.collect())
        .map_err(|e| wrong(format!("its header cannot be made: {e}")))?;
    let mut json = serde_json::to_vec(&header).map_err(|e| wrong(e.to_string()))?;
    json.resize(json.len().next_multiple_of(8), b' ');
    Ok([&(json.len() as u64).to_le_bytes()[..], &json].concat())
}

impl Part<'_> {
    /// The bytes of `rows`, made by all processors.
    fn rows(&self, rows: Range<usize>, columns: usize, dtype: Float) -> Result<Vec<u8>> {
        let size = columns * dtype.size();
        let mut bytes = vec![0; rows.len() * size];
        let threads = thread::available_parallelism().map_or(1, NonZero::get);
        let each = rows.len().div_ceil(threads);
        let fits = thread::scope(|scope| {
            let pieces = rows.step_by(each).zip(bytes.chunks_mut(each * size));
            let work = |(first, out)| scope.spawn(move || self.convert(first, columns, dtype, out));
            let work: Vec<_> = pieces.map(work).collect();
            work.into_iter().try_for_each(|it| it.join().expect("it only converts numbers"))
        });
        fits.map_err(|value| Error::Checkpoint {
            path: self.tensor.path().into(),
            message: format!(
                "tensor `{}` has the value {value}, which f16 cannot hold: convert to bf16 or f32",
                self.parameter.name
            ),
        })?;
        Ok(bytes)
    }

    /// Writes the rows from `first` on that `out` has room for; a value that does not fit is the error.
    fn convert(
        &self,
        first: usize,
        columns: usize,
        dtype: Float,
        out: &mut [u8],
    ) -> Result<(), f32> {
        let mut values = vec![0.0; columns];
        for (row, out) in out.chunks_exact_mut(columns * dtype.size()).enumerate() {
            self.tensor.to_f32_row(self.tensor.row(first + row), &mut values);
            if self.shift != 0.0 {
                values.iter_mut().for_each(|value| *value -= self.shift);
            }
            match dtype {
                Float::F32 => {
                    for (out, value) in out.as_chunks_mut().0.iter_mut().zip(&values) {
                        *out = value.to_le_bytes();
                    }
                }
                Float::BF16 => {
                    for (out, value) in out.as_chunks_mut().0.iter_mut().zip(&values) {
                        *out = bf16::from_f32(*value).to_le_bytes();
                    }
                }
                Float::F16 => {
                    for (out, value) in out.as_chunks_mut().0.iter_mut().zip(&values) {
                        let half = f16::from_f32(*value);
                        if half.is_infinite() && value.is_finite() {
                            return Err(*value);
                        }
                        *out = half.to_le_bytes();
                    }
                }
            }
        }
        Ok(())
    }
}

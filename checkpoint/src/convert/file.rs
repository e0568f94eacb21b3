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

use super::tensors::{From, Written};
use super::{Changes, Float};
use crate::architecture::Parameter;
use crate::{Checkpoint, Error, Result};

/// Elements of a piece, about.
const PIECE: usize = 1 << 22;

/// Writes one file.
pub(super) struct Writer<'a> {
    pub path: &'a Path,
    pub dtype: Float,
    pub checkpoint: &'a Checkpoint,
    pub changes: &'a Changes,
}

type Wrote<'w> = &'w mut dyn FnMut(u64) -> ControlFlow<()>;

impl Writer<'_> {
    /// Writes `tensors` to a new file, as far as `wrote` lets it.
    pub fn write(&self, tensors: &[Written], wrote: Wrote) -> Result<ControlFlow<()>> {
        let failed = || Error::io(self.path);
        let mut file = File::create_new(self.path).map_err(failed())?;
        file.write_all(&self.header(tensors)?).map_err(failed())?;
        for tensor in tensors {
            let end = match &tensor.from {
                From::Rows(parts) => {
                    let mut all = parts.iter();
                    all.try_fold(ControlFlow::Continue(()), |end, (parameter, rows)| match end {
                        ControlFlow::Continue(()) => {
                            self.rows(parameter, rows.clone(), &mut file, wrote)
                        }
                        end => Ok(end),
                    })?
                }
                From::Experts(experts) => self.experts(experts, &mut file, wrote)?,
            };
            if end.is_break() {
                return Ok(end);
            }
        }
        // Before a folder gets its name, what it has is on the disk.
        file.sync_all().map_err(failed())?;
        Ok(ControlFlow::Continue(()))
    }

    /// The header's length and the header, of whole words.
    fn header(&self, tensors: &[Written]) -> Result<Vec<u8>> {
        let dtype = match self.dtype {
            Float::F32 => Stored::F32,
            Float::F16 => Stored::F16,
            Float::BF16 => Stored::BF16,
        };
        let mut end = 0;
        let infos = tensors.iter().map(|tensor| {
            let start = end;
            end += self.dtype.bytes(tensor) as usize;
            let shape = tensor.shape.clone();
            (tensor.name.clone(), TensorInfo { dtype, shape, data_offsets: (start, end) })
        });
        // What transformers wants to read there.
        let about = HashMap::from([("format".to_owned(), "pt".to_owned())]);
        let wrong = |message: String| Error::Checkpoint { path: self.path.into(), message };
        let header = Metadata::new(Some(about), infos.collect())
            .map_err(|e| wrong(format!("its header cannot be made: {e}")))?;
        let mut json = serde_json::to_vec(&header).map_err(|e| wrong(e.to_string()))?;
        json.resize(json.len().next_multiple_of(8), b' ');
        Ok([&(json.len() as u64).to_le_bytes()[..], &json].concat())
    }

    /// Writes the rows of a tensor, some at a time, which all processors make.
    fn rows(
        &self,
        parameter: &Parameter,
        rows: Range<usize>,
        file: &mut File,
        wrote: Wrote,
    ) -> Result<ControlFlow<()>> {
        let tensor = self.checkpoint.get(parameter)?;
        let columns = parameter.elements() / parameter.rows();
        let step = (PIECE / columns).max(1);
        for first in rows.clone().step_by(step) {
            let some = first..rows.end.min(first + step);
            let bytes = in_parallel(some, columns * self.dtype.size(), |first, out| {
                let mut values = vec![0.0; columns];
                for (row, out) in out.chunks_exact_mut(columns * self.dtype.size()).enumerate() {
                    self.changes.row(&tensor, parameter, first + row, &mut values);
                    self.dtype.round(&values, out)?;
                }
                Ok(())
            });
            let bytes = bytes.map_err(|value| too_large(tensor.path(), parameter, value))?;
            file.write_all(&bytes).map_err(Error::io(self.path))?;
            if wrote(bytes.len() as u64).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        tensor.release(0..tensor.bytes().len());
        Ok(ControlFlow::Continue(()))
    }

    /// Writes a tensor of all experts, one of them at a time.
    fn experts(
        &self,
        experts: &[Vec<&Parameter>],
        file: &mut File,
        wrote: Wrote,
    ) -> Result<ControlFlow<()>> {
        for parameters in experts {
            let mut values = Vec::with_capacity(parameters.len());
            for parameter in parameters {
                values.push(self.changes.values(&self.checkpoint.get(parameter)?, parameter));
            }
            let first = parameters[0];
            let read = self.checkpoint.get(first)?;
            let (rows, in_turn) = (first.shape[0], parameters.len());
            let columns = first.elements() / rows;
            let wide = rows * in_turn;
            let bytes = in_parallel(0..columns, wide * self.dtype.size(), |first, out| {
                let mut row = vec![0.0; wide];
                for (column, out) in out.chunks_exact_mut(wide * self.dtype.size()).enumerate() {
                    for (i, value) in row.iter_mut().enumerate() {
                        *value = values[i % in_turn][i / in_turn * columns + first + column];
                    }
                    self.dtype.round(&row, out)?;
                }
                Ok(())
            });
            let bytes = bytes.map_err(|value| too_large(read.path(), first, value))?;
            file.write_all(&bytes).map_err(Error::io(self.path))?;
            if wrote(bytes.len() as u64).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

/// What is said of a tensor of the file `path`.
fn too_large(path: &Path, parameter: &Parameter, value: f32) -> Error {
    Error::Checkpoint {
        path: path.into(),
        message: format!(
            "tensor `{}` has the value {value}, which f16 cannot hold: convert to bf16 or f32",
            parameter.name
        ),
    }
}

/// `rows` rows of `size` bytes, of which `make` makes some from the given one on, on each processor; a value
/// that does not fit is the error.
fn in_parallel(
    rows: Range<usize>,
    size: usize,
    make: impl Fn(usize, &mut [u8]) -> Result<(), f32> + Sync,
) -> Result<Vec<u8>, f32> {
    let mut bytes = vec![0; rows.len() * size];
    let threads = thread::available_parallelism().map_or(1, NonZero::get);
    let each = rows.len().div_ceil(threads);
    thread::scope(|scope| {
        let make = &make;
        let pieces = rows.step_by(each).zip(bytes.chunks_mut(each * size));
        let work: Vec<_> =
            pieces.map(|(first, out)| scope.spawn(move || make(first, out))).collect();
        work.into_iter().try_for_each(|it| it.join().expect("it only converts numbers"))
    })?;
    Ok(bytes)
}

impl Float {
    /// Writes `values` in this type; the first one that it cannot hold is the error.
    fn round(self, values: &[f32], out: &mut [u8]) -> Result<(), f32> {
        match self {
            Self::F32 => {
                for (out, value) in out.as_chunks_mut().0.iter_mut().zip(values) {
                    *out = value.to_le_bytes();
                }
            }
            Self::BF16 => {
                for (out, value) in out.as_chunks_mut().0.iter_mut().zip(values) {
                    *out = bf16::from_f32(*value).to_le_bytes();
                }
            }
            Self::F16 => {
                for (out, value) in out.as_chunks_mut().0.iter_mut().zip(values) {
                    let half = f16::from_f32(*value);
                    if half.is_infinite() && value.is_finite() {
                        return Err(*value);
                    }
                    *out = half.to_le_bytes();
                }
            }
        }
        Ok(())
    }
}

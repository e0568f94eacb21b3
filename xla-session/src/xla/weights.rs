//! Weights: from the checkpoint's tensors, packed straight into device memory.

use std::collections::HashMap;
use std::ops::Range;

use iree_rt::buffer::ALIGNMENT;
use iree_rt::{BufferView, Device, Upload};
use rayon::prelude::*;

use super::{element_type, iree};
use crate::Result;
use crate::backend::{Event, SessionOptions};
use crate::checkpoint::{Checkpoint, Dtype, Tensor};
use crate::emit::{Format, Layout, WeightSpec};

/// Bytes that are packed before the pages they came from are given back: bounds what loading
/// needs beyond the weights themselves.
const SLAB: usize = 32 << 20;

/// Every weight of a model on its device, by how it is made.
pub(super) type Weights = HashMap<WeightSpec, BufferView>;

/// Loads `specs`, each once.
///
/// # Errors
///
/// A tensor that is missing or of the wrong shape, or no memory.
pub(super) fn load(
    device: &Device,
    checkpoint: &Checkpoint,
    specs: &[WeightSpec],
    options: &SessionOptions,
) -> Result<Weights> {
    let mut offsets = Vec::with_capacity(specs.len());
    let mut size = 0;
    for spec in specs {
        offsets.push(size);
        size += spec.bytes().next_multiple_of(ALIGNMENT);
    }
    let mut progress = Progress { options, bytes: 0, total: 0 };
    for spec in specs {
        for (name, rows) in &spec.parts {
            let size = checkpoint.dtype(name).map_or(0, Dtype::size);
            progress.total += (rows * spec.columns.max(1) * size) as u64;
        }
    }
    let mut memory =
        Upload::new(device, size).map_err(iree("allocating memory for the weights"))?;
    for (spec, &offset) in specs.iter().zip(&offsets) {
        let mut rest = &mut memory[offset..offset + spec.bytes()];
        pack(checkpoint, spec, &mut progress, |slab| {
            let (now, later) = std::mem::take(&mut rest).split_at_mut(slab.bytes);
            rest = later;
            slab.pack(now);
        })?;
    }
    let buffer = memory.finish().map_err(iree("uploading the weights"))?;
    let mut weights = HashMap::with_capacity(specs.len());
    for (spec, &offset) in specs.iter().zip(&offsets) {
        let part = buffer.subspan(offset..offset + spec.bytes());
        let view =
            part.and_then(|part| part.view(&spec.ty().dims, element_type(spec.ty().element)));
        weights.insert(spec.clone(), view.map_err(iree("viewing a weight"))?);
    }
    Ok(weights)
}

struct Progress<'a> {
    options: &'a SessionOptions,
    bytes: u64,
    total: u64,
}

/// Consecutive blocks (rows, where the layout has no blocks) of one weight.
struct Slab<'a> {
    spec: &'a WeightSpec,
    tensors: &'a [Tensor<'a>],
    blocks: Range<usize>,
    /// What they take in device memory.
    bytes: usize,
}

/// Hands `place` the slabs of `spec` in order, and gives the source's pages back after each.
fn pack(
    checkpoint: &Checkpoint,
    spec: &WeightSpec,
    progress: &mut Progress<'_>,
    mut place: impl FnMut(Slab<'_>),
) -> Result<()> {
    let mut tensors = Vec::with_capacity(spec.parts.len());
    for (name, rows) in &spec.parts {
        let tensor = checkpoint.tensor(name, &shape(spec, *rows))?;
        tensor.prefetch();
        tensors.push(tensor);
    }
    let rows_per_block = lanes(spec);
    let blocks = spec.rows().div_ceil(rows_per_block);
    let block_bytes = spec.bytes() / blocks;
    let step = (SLAB / block_bytes).max(1);
    for first in (0..blocks).step_by(step) {
        let blocks = first..blocks.min(first + step);
        let bytes = blocks.len() * block_bytes;
        place(Slab { spec, tensors: &tensors, blocks: blocks.clone(), bytes });
        let rows = blocks.start * rows_per_block..spec.rows().min(blocks.end * rows_per_block);
        let mut before = 0;
        for ((_, part), tensor) in spec.parts.iter().zip(&tensors) {
            let low = rows.start.clamp(before, before + part) - before;
            let high = rows.end.clamp(before, before + part) - before;
            let row_bytes = tensor.bytes().len() / part;
            tensor.release(low * row_bytes..high * row_bytes);
            progress.bytes += ((high - low) * row_bytes) as u64;
            before += part;
        }
        let Progress { options, bytes, total } = *progress;
        options.notify(Event::Loading { bytes, total });
    }
    Ok(())
}

impl Slab<'_> {
    /// Packs the blocks into `out`, on all threads.
    fn pack(&self, out: &mut [u8]) {
        let block_bytes = self.bytes / self.blocks.len();
        out.par_chunks_mut(block_bytes).zip(self.blocks.clone()).for_each(|(out, block)| {
            let lanes = lanes(self.spec);
            let rows: Vec<_> =
                (block * lanes..(block + 1) * lanes).map_while(|row| self.source(row)).collect();
            let columns = self.spec.columns.max(1);
            if self.spec.format == Format::F32 {
                let mut wide = vec![0.0; rows.len() * columns];
                for ((tensor, row), wide) in rows.iter().zip(wide.chunks_exact_mut(columns)) {
                    tensor.to_f32_row(row * columns..(row + 1) * columns, wide);
                }
                let rows: Vec<_> = wide.chunks_exact(columns).map(bytemuck::cast_slice).collect();
                interleave::<4>(&rows, out, lanes);
            } else {
                let bytes = columns * self.spec.ty().element.bytes();
                let rows: Vec<_> = rows
                    .iter()
                    .map(|(tensor, row)| &tensor.bytes()[row * bytes..(row + 1) * bytes])
                    .collect();
                interleave::<2>(&rows, out, lanes);
            }
        });
    }

    /// The tensor that holds a row of the joined matrix, and which of its rows it is.
    fn source(&self, mut row: usize) -> Option<(&Tensor<'_>, usize)> {
        for ((_, rows), tensor) in self.spec.parts.iter().zip(self.tensors) {
            if row < *rows {
                return Some((tensor, row));
            }
            row -= rows;
        }
        None
    }
}

/// Writes element `k` of row `lane` to element `k * lanes + lane` of `out`; elements of `N` bytes.
fn interleave<const N: usize>(rows: &[&[u8]], out: &mut [u8], lanes: usize) {
    /// Columns at a time: what they fill of `out` stays in the innermost cache.
    const TILE: usize = 128;
    let (out, _) = out.as_chunks_mut::<N>();
    for (tile, out) in out.chunks_mut(TILE * lanes).enumerate() {
        for (lane, row) in rows.iter().enumerate() {
            let (row, _) = row[tile * TILE * N..].as_chunks::<N>();
            for (element, out) in row.iter().zip(out[lane..].iter_mut().step_by(lanes)) {
                *out = *element;
            }
        }
    }
}

fn lanes(spec: &WeightSpec) -> usize {
    match spec.layout {
        Layout::Rows => 1,
        Layout::Packed { lanes } => lanes,
    }
}

fn shape(spec: &WeightSpec, rows: usize) -> Vec<usize> {
    if spec.columns == 0 { vec![rows] } else { vec![rows, spec.columns] }
}

#[cfg(test)]
mod tests {
    use super::interleave;

    #[test]
    fn lanes_of_one_block_lie_side_by_side() {
        let mut out = [0; 12];
        interleave::<2>(&[&[1, 2, 3, 4], &[5, 6, 7, 8]], &mut out, 3);
        assert_eq!(out, [1, 2, 5, 6, 0, 0, 3, 4, 7, 8, 0, 0]);
    }

    #[test]
    fn long_rows_are_interleaved_to_the_end() {
        let rows: Vec<Vec<u8>> = (0..3).map(|lane| vec![lane + 1; 4 * 301]).collect();
        let rows: Vec<&[u8]> = rows.iter().map(Vec::as_slice).collect();
        let mut out = vec![0; 4 * 301 * 3];
        interleave::<4>(&rows, &mut out, 3);
        let expected = [[1u8; 4], [2; 4], [3; 4]].concat().repeat(301);
        assert_eq!(out, expected);
    }
}

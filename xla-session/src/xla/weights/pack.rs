//! Packing: from rows of tensors to blocks of the image.

use std::borrow::Cow;
use std::ops::Range;

use checkpoint::{Checkpoint, Dtype, Tensor};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use kernels::quantise;
use rayon::prelude::*;

use super::image::{self, ALIGNMENT, Image, Plane, Planes};
use crate::Result;
use crate::emit::builder::TensorType;
use crate::emit::{Format, Layout, WeightSpec, stored_format};
use crate::opening::{Event, SessionOptions};

/// Bytes that are packed at a time, on all threads. The pages they came from are given back then:
/// bounds what packing needs beyond the image itself and what lies beside the weight being packed.
const SLAB: usize = 8 << 20;

/// Takes an image from its first byte to its last.
pub(super) trait Output {
    /// The place of the next `bytes` bytes; they are zero.
    fn next(&mut self, bytes: usize) -> Result<&mut [u8]>;
}

/// Writes `image`, whose weights `checkpoint` has, to `out`; returns where everything lies.
///
/// # Errors
///
/// A tensor that is missing or of the wrong shape, or what `out` says.
pub(super) fn pack(
    checkpoint: &Checkpoint,
    image: &Image<'_>,
    options: &SessionOptions,
    out: &mut impl Output,
) -> Result<Planes> {
    let mut progress = Progress { options, bytes: 0, total: 0 };
    for spec in image.specs {
        let bytes = |(name, rows): &(String, usize)| checkpoint.bytes(name, &shape(spec, *rows));
        progress.total += spec.parts.iter().map(bytes).sum::<u64>();
    }
    let mut end = 0;
    let mut planes = Planes::with_capacity(image.specs.len());
    for spec in image.specs {
        planes.push(pack_weight(checkpoint, spec, &mut end, &mut progress, out)?);
    }
    out.next(image::table_offset(&planes) - end)?;
    let table = image::table(&planes);
    out.next(table.len())?.copy_from_slice(&table);
    Ok(planes)
}

/// Of a tensor that is `rows` of the weight.
fn shape(spec: &WeightSpec, rows: usize) -> Vec<usize> {
    if spec.columns == 0 { vec![rows] } else { vec![rows, spec.columns] }
}

struct Progress<'a> {
    options: &'a SessionOptions,
    bytes: u64,
    total: u64,
}

/// Appends a weight to an image of `end` bytes; returns where its planes lie.
///
/// The first plane goes straight out; those behind it are made at the same time and wait for its
/// end. Scales, errors, and where compressed blocks begin are a small part of the whole.
fn pack_weight(
    checkpoint: &Checkpoint,
    spec: &WeightSpec,
    end: &mut usize,
    progress: &mut Progress<'_>,
    out: &mut impl Output,
) -> Result<Vec<Plane>> {
    let source = Source::new(checkpoint, spec)?;
    let blocks = source.blocks();
    let mut types = spec.planes().into_iter();
    let Some(values) = types.next() else { return Ok(Vec::new()) };
    let others: Vec<TensorType> = types.collect();
    // Of words, for their alignment; the values have that of the image.
    let mut waiting: Vec<Vec<u64>> =
        others.iter().map(|ty| vec![0; ty.bytes().div_ceil(size_of::<u64>())]).collect();
    let mut rest: Vec<&mut [u8]> = waiting
        .iter_mut()
        .zip(&others)
        .map(|(words, ty)| &mut bytemuck::cast_slice_mut(words)[..ty.bytes()])
        .collect();

    let offset = end.next_multiple_of(ALIGNMENT);
    out.next(offset - *end)?;
    let mut bytes = 0;
    let block_bytes = spec.most_bytes() / blocks;
    let step = (SLAB / block_bytes).max(1);
    for first in (0..blocks).step_by(step) {
        let slab = first..blocks.min(first + step);
        let mut beside = Vec::with_capacity(others.len());
        for (rest, ty) in rest.iter_mut().zip(&others) {
            let now = ty.bytes() / blocks * slab.len();
            beside.push(rest.split_off_mut(..now).expect("a part for each block"));
        }
        match spec.layout {
            Layout::Compressed { lanes } => {
                let begins: &mut [u64] = bytemuck::cast_slice_mut(beside.remove(0));
                for (block, begin) in source.compress(slab.clone(), lanes).iter().zip(begins) {
                    *begin = bytes as u64;
                    out.next(block.len())?.copy_from_slice(block);
                    bytes += block.len();
                }
            }
            _ => {
                beside.insert(0, out.next(slab.len() * block_bytes)?);
                bytes += slab.len() * block_bytes;
                source.pack(slab.clone(), beside);
            }
        }
        progress.bytes += source.release(slab);
        let Progress { options, bytes, total } = *progress;
        options.notify(Event::Loading { bytes, total });
    }
    let mut planes = vec![Plane::new(values, offset, bytes)];
    *end = offset + bytes;
    for (ty, words) in others.into_iter().zip(&waiting) {
        let (offset, bytes) = (end.next_multiple_of(ALIGNMENT), ty.bytes());
        out.next(offset - *end)?;
        for part in bytemuck::cast_slice(words)[..bytes].chunks(SLAB) {
            out.next(part.len())?.copy_from_slice(part);
        }
        *end = offset + bytes;
        planes.push(Plane::new(ty, offset, bytes));
    }
    Ok(planes)
}

/// The tensors that are joined to one weight.
struct Source<'a> {
    spec: &'a WeightSpec,
    tensors: Vec<Tensor<'a>>,
    /// Of each tensor, as [`Checkpoint::bytes`] counts them.
    bytes: Vec<u64>,
}

/// One row of a weight: the tensor that holds it, and its elements in there.
struct Row<'a> {
    tensor: &'a Tensor<'a>,
    elements: Range<usize>,
}

impl<'a> Source<'a> {
    fn new(checkpoint: &'a Checkpoint, spec: &'a WeightSpec) -> Result<Self> {
        let (mut tensors, mut bytes) = (Vec::with_capacity(spec.parts.len()), Vec::new());
        for (name, rows) in &spec.parts {
            let shape = shape(spec, *rows);
            let tensor = checkpoint.tensor(name, &shape)?;
            tensor.prefetch();
            tensors.push(tensor);
            bytes.push(checkpoint.bytes(name, &shape));
        }
        Ok(Self { spec, tensors, bytes })
    }

    /// Rows that are packed together; 1 where the layout has no blocks.
    fn lanes(&self) -> usize {
        match self.spec.layout {
            Layout::Rows => 1,
            Layout::Packed { lanes } | Layout::Compressed { lanes } | Layout::Sketch { lanes } => {
                lanes
            }
        }
    }

    fn blocks(&self) -> usize {
        self.spec.rows().div_ceil(self.lanes())
    }

    /// The rows of `blocks`; those behind the last are missing.
    fn rows(&self, blocks: Range<usize>) -> Range<usize> {
        let (rows, lanes) = (self.spec.rows(), self.lanes());
        rows.min(blocks.start * lanes)..rows.min(blocks.end * lanes)
    }

    fn row(&self, mut row: usize) -> Option<Row<'_>> {
        for ((_, rows), tensor) in self.spec.parts.iter().zip(&self.tensors) {
            if row < *rows {
                return Some(Row { tensor, elements: tensor.row(row) });
            }
            row -= rows;
        }
        None
    }

    /// Packs `blocks` into their part of each plane, on all threads.
    fn pack(&self, blocks: Range<usize>, planes: Vec<&mut [u8]>) {
        let count = blocks.len();
        let mut planes: Vec<_> = planes
            .into_iter()
            .map(|plane| {
                let block_bytes = plane.len() / count;
                plane.chunks_mut(block_bytes)
            })
            .collect();
        let blocks: Vec<(usize, Vec<&mut [u8]>)> = blocks
            .map(|block| (block, planes.iter_mut().filter_map(Iterator::next).collect()))
            .collect();
        blocks.into_par_iter().for_each(|(block, mut planes)| {
            let rows: Vec<_> =
                self.rows(block..block + 1).filter_map(|row| self.row(row)).collect();
            match self.spec.layout {
                Layout::Rows => pack_row(self.spec.format, &rows[0], &mut planes),
                Layout::Packed { lanes } | Layout::Compressed { lanes } => {
                    pack_block(self.spec.format, &rows, lanes, &mut planes);
                }
                Layout::Sketch { .. } => sketch_block(self.spec.format, &rows, &mut planes),
            }
        });
    }

    /// `blocks`, packed and then compressed, on all threads.
    fn compress(&self, blocks: Range<usize>, lanes: usize) -> Vec<Vec<u8>> {
        let WeightSpec { format, columns, .. } = *self.spec;
        let block_bytes = format.block_bytes(columns);
        let compress = |packed: &mut Vec<u8>, block: usize| {
            packed.clear();
            packed.resize(block_bytes, 0);
            let rows: Vec<_> =
                self.rows(block..block + 1).filter_map(|row| self.row(row)).collect();
            pack_block(format, &rows, lanes, &mut [packed]);
            let mut out = Vec::new();
            kernels::compress(format, packed, columns, &mut out);
            out
        };
        blocks.into_par_iter().map_init(Vec::new, compress).collect()
    }

    /// Gives back the pages of `blocks`; returns their bytes. Where a file has rows in another order,
    /// some are needed again soon, and come back.
    fn release(&self, blocks: Range<usize>) -> u64 {
        let rows = self.rows(blocks);
        let (mut before, mut bytes) = (0, 0);
        for (((_, part), tensor), all) in self.spec.parts.iter().zip(&self.tensors).zip(&self.bytes)
        {
            let low = rows.start.clamp(before, before + part) - before;
            let high = rows.end.clamp(before, before + part) - before;
            let row_bytes = tensor.bytes().len() / part;
            tensor.release(low * row_bytes..high * row_bytes);
            bytes += all / *part as u64 * (high - low) as u64;
            before += part;
        }
        bytes
    }
}

/// Packs one block, `lanes` rows or less at the end, into its part of each plane, all zero before.
fn pack_block(format: Format, rows: &[Row<'_>], lanes: usize, planes: &mut [&mut [u8]]) {
    match (format, planes) {
        (Format::F32, [out]) => widened(rows, |rows| {
            let rows: Vec<&[u8]> = rows.iter().map(|row| bytemuck::cast_slice(row)).collect();
            interleave::<4>(&rows, out, lanes);
        }),
        (Format::Bf16, [out]) if rows.iter().any(|row| row.tensor.dtype() != Dtype::BF16) => {
            widened(rows, |rows| {
                let mut rounded = vec![vec![bf16::ZERO; rows[0].len()]; rows.len()];
                for (rounded, row) in rounded.iter_mut().zip(rows) {
                    rounded.convert_from_f32_slice(row);
                }
                let rows: Vec<&[u8]> =
                    rounded.iter().map(|row| bytemuck::cast_slice(row)).collect();
                interleave::<2>(&rows, out, lanes);
            });
        }
        (Format::F16 | Format::Bf16, [out]) => {
            let rows = stored(rows);
            interleave::<2>(&slices(&rows), out, lanes);
        }
        (_, [out]) if is_stored_so(format, rows) => {
            let columns = rows.first().map_or(0, |row| row.elements.len());
            let rows = stored(rows);
            kernels::ggml::pack_rows(format, columns, &slices(&rows), out);
        }
        (Format::Int8 | Format::Int6 | Format::Int4 | Format::Nested4, [out]) => {
            widened(rows, |rows| quantise::pack_block(format, rows, out));
        }
        (format, planes) => unreachable!("{format:?} in {} planes", planes.len()),
    }
}

/// Whether the checkpoint has `rows` as integers of `format`: they are not rounded again.
fn is_stored_so(format: Format, rows: &[Row<'_>]) -> bool {
    format.is_quantised() && rows.iter().all(|row| stored_format(row.tensor.dtype()) == format)
}

/// Packs one block into a sketch of what its weights become in `format`, and its errors.
fn sketch_block(format: Format, rows: &[Row<'_>], planes: &mut [&mut [u8]]) {
    let [sketch, errors] = planes else { unreachable!("{} planes", planes.len()) };
    let errors: &mut [f32] = bytemuck::cast_slice_mut(errors);
    let errors = errors.first_chunk_mut().expect("one for each row");
    widened(rows, |rows| {
        let rounded = |row: &&[f32]| row.iter().map(|w| bf16::from_f32(*w).to_f32()).collect();
        match format {
            Format::Bf16 => {
                let rounded: Vec<Vec<f32>> = rows.iter().map(rounded).collect();
                let rows: Vec<&[f32]> = rounded.iter().map(Vec::as_slice).collect();
                quantise::sketch_block(&rows, sketch, errors);
            }
            // f32 holds every weight, and only f16 becomes f16.
            _ => quantise::sketch_block(rows, sketch, errors),
        }
    });
}

/// Packs one row into its part of each plane, all zero before.
fn pack_row(format: Format, row: &Row<'_>, planes: &mut [&mut [u8]]) {
    let row = std::slice::from_ref(row);
    let one = |pack: fn(&[f32], &mut [u8], &mut [f16]), values: &mut [u8], scales: &mut [u8]| {
        widened(row, |rows| pack(rows[0], values, bytemuck::cast_slice_mut(scales)));
    };
    match (format, planes) {
        (Format::F32, [out]) => {
            row[0].tensor.to_f32_row(row[0].elements.clone(), bytemuck::cast_slice_mut(out));
        }
        (Format::Bf16, [out]) if row[0].tensor.dtype() != Dtype::BF16 => widened(row, |rows| {
            let rounded: &mut [bf16] = bytemuck::cast_slice_mut(out);
            rounded.convert_from_f32_slice(rows[0]);
        }),
        (Format::F16 | Format::Bf16, [out]) => out.copy_from_slice(&stored(row)[0]),
        (_, [values, scales]) if is_stored_so(format, row) => {
            let groups = row[0].tensor.integers(row[0].elements.clone());
            let scales = bytemuck::cast_slice_mut(scales);
            match format {
                Format::Int8 => quantise::pack_quantised_int8_row(&groups, values, scales),
                _ => quantise::pack_quantised_int4_row(&groups, values, scales),
            }
        }
        (Format::Int8, [values, scales]) => one(quantise::pack_int8_row, values, scales),
        (Format::Int4, [values, scales]) => one(quantise::pack_int4_row, values, scales),
        (format, planes) => unreachable!("{format:?} in {} planes", planes.len()),
    }
}

/// Hands `pack` the rows as float32.
fn widened(rows: &[Row<'_>], pack: impl FnOnce(&[&[f32]])) {
    let columns = rows.first().map_or(1, |row| row.elements.len());
    let mut wide = vec![0.0; rows.len() * columns];
    for (row, wide) in rows.iter().zip(wide.chunks_exact_mut(columns)) {
        row.tensor.to_f32_row(row.elements.clone(), wide);
    }
    pack(&wide.chunks_exact(columns).collect::<Vec<_>>());
}

/// The bytes of rows whose elements are stored as the checkpoint has them.
fn stored<'a>(rows: &'a [Row<'_>]) -> Vec<Cow<'a, [u8]>> {
    rows.iter().map(|Row { tensor, elements }| tensor.bytes_of(elements.clone())).collect()
}

fn slices<'a>(rows: &'a [Cow<'_, [u8]>]) -> Vec<&'a [u8]> {
    rows.iter().map(|row| &**row).collect()
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

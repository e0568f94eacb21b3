//! One tensor's bytes and their conversion to float32.

use std::borrow::Cow;
use std::ops::Range;
use std::path::Path;

use half::f16;
use half::slice::HalfFloatSliceExt;
use memmap2::Mmap;

use crate::Dtype;
use crate::converted::Converted;
use crate::encodings::Values;
use crate::gguf::blocks;

/// A tensor of a [`Checkpoint`](crate::Checkpoint).
#[derive(Debug)]
pub struct Tensor<'a> {
    dtype: Dtype,
    shape: Cow<'a, [usize]>,
    rows: RowOrder,
    path: &'a Path,
    /// Its elements; of a quantised matrix of a folder its numbers.
    stored: Stored<'a>,
    encoded: Option<Decoded<'a>>,
}

/// Bytes of a file.
#[derive(Debug)]
pub(crate) struct Stored<'a> {
    pub bytes: Cow<'a, [u8]>,
    /// The mapping and the offset in it, if the file is mapped.
    pub map: Option<(&'a Mmap, usize)>,
}

/// What makes values of the numbers of a quantised matrix.
#[derive(Debug)]
struct Decoded<'a> {
    values: Values,
    /// The tensors behind the first.
    others: Vec<Stored<'a>>,
    /// The group of each column, where they are not in order.
    order: Option<Vec<u32>>,
}

impl<'a> Tensor<'a> {
    /// A tensor as its file has it.
    pub(crate) fn stored(
        path: &'a Path,
        dtype: Dtype,
        shape: &'a [usize],
        rows: RowOrder,
        stored: Stored<'a>,
    ) -> Self {
        Self { dtype, shape: shape.into(), rows, path, stored, encoded: None }
    }

    /// A tensor that was made of others, of which the file `path` has one.
    pub(crate) fn made(path: &'a Path, dtype: Dtype, shape: Vec<usize>, bytes: Vec<u8>) -> Self {
        let stored = Stored { bytes: bytes.into(), map: None };
        Self { dtype, shape: shape.into(), rows: RowOrder::Stored, path, stored, encoded: None }
    }

    /// A quantised matrix, whose first tensor is in the file `path`.
    pub(crate) fn decoded(
        path: &'a Path,
        dtype: Dtype,
        (shape, rows): (&[usize], RowOrder),
        mut parts: Vec<Stored<'a>>,
        values: Values,
        order: Option<Vec<u32>>,
    ) -> Self {
        let others = parts.split_off(1);
        let stored = parts.remove(0);
        let encoded = Some(Decoded { values, others, order });
        let shape = shape.to_vec().into();
        Self { dtype, shape, rows, path, stored, encoded }
    }
}

impl Tensor<'_> {
    /// The vector as it was before a converter changed it, in f32; a value that cannot come of that is the
    /// error.
    pub(crate) fn before(self, converted: Converted) -> Result<Self, f32> {
        let values = self.to_f32().into_iter();
        let bytes = values
            .map(|value| converted.undo(value).map(f32::to_le_bytes).ok_or(value))
            .collect::<Result<Vec<_>, _>>()?;
        let stored = Stored { bytes: bytes.into_flattened().into(), map: None };
        Ok(Self { dtype: Dtype::F32, rows: RowOrder::Stored, stored, encoded: None, ..self })
    }

    /// Its element type; of a quantised matrix of a folder, the blocks that it is [handed
    /// out](Self::bytes_of) as, or f32 where there are none that hold its values.
    pub fn dtype(&self) -> Dtype {
        self.dtype
    }

    /// Its shape.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The file it is in.
    pub fn path(&self) -> &Path {
        self.path
    }

    /// Its elements as the file has them, little-endian; not necessarily aligned to their size. Where a
    /// row lies, [`row`](Self::row) says. Of a quantised matrix of a folder these are its numbers.
    pub fn bytes(&self) -> &[u8] {
        &self.stored.bytes
    }

    /// Whether type and bytes are those of `other`.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.dtype == other.dtype && self.parts().eq(other.parts())
    }

    /// The bytes of each of its tensors.
    fn parts(&self) -> impl Iterator<Item = &[u8]> {
        let others = self.encoded.iter().flat_map(|it| &it.others);
        std::iter::once(&self.stored).chain(others).map(|stored| &*stored.bytes)
    }

    /// Its elements as floats of `dtype`: its own type, or f32.
    pub(crate) fn bytes_as(&self, dtype: Dtype) -> Cow<'_, [u8]> {
        if dtype == self.dtype {
            return self.bytes_of(0..self.elements());
        }
        self.to_f32().into_iter().flat_map(f32::to_le_bytes).collect::<Vec<_>>().into()
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// The elements of row `row`, counted as the file has them: a file may have rows in another order.
    /// A row of a vector is one element.
    pub fn row(&self, row: usize) -> Range<usize> {
        let columns: usize = self.shape.iter().skip(1).product();
        let row = self.rows.place(row);
        row * columns..(row + 1) * columns
    }

    /// The bytes of elements that are whole blocks. Those of a quantised matrix of a folder are made here:
    /// its integers and scales in another order, or its values.
    ///
    /// # Panics
    ///
    /// When `elements` are outside the tensor or begin or end within a block.
    pub fn bytes_of(&self, elements: Range<usize>) -> Cow<'_, [u8]> {
        let (of_block, _) = self.dtype.block();
        assert!(
            elements.start.is_multiple_of(of_block) && elements.end.is_multiple_of(of_block),
            "elements {elements:?} are no whole blocks of {of_block}"
        );
        if let Some(encoded) = &self.encoded {
            return encoded.blocks(self.dtype, &self.stored, self.shape[1], elements).into();
        }
        if let RowOrder::Columns { step, first } = self.rows {
            return self.of_columns(elements, step, first).into();
        }
        let bytes = self.dtype.bytes_of(elements.start)..self.dtype.bytes_of(elements.end);
        self.stored.bytes[bytes].into()
    }

    /// The bytes of `elements` of a matrix whose rows are [columns](RowOrder::Columns) of its file.
    fn of_columns(&self, elements: Range<usize>, step: usize, first: usize) -> Vec<u8> {
        let ([rows, columns], size) = ([self.shape[0], self.shape[1]], self.dtype.bytes_of(1));
        let mut out = Vec::with_capacity(elements.len() * size);
        for element in elements {
            let (row, column) = (element / columns, element % columns);
            let at = (column * rows * step + row * step + first) * size;
            out.extend_from_slice(&self.stored.bytes[at..at + size]);
        }
        out
    }

    /// Of [`Dtype::Q4_0`] and [`Dtype::Q8_0`] the integers of each block and their scale, whose products
    /// the weights are.
    ///
    /// # Panics
    ///
    /// When the tensor is of another type, or as [`bytes_of`](Self::bytes_of).
    pub fn integers(&self, elements: Range<usize>) -> Vec<([i8; 32], f16)> {
        let bytes = self.bytes_of(elements);
        match self.dtype {
            Dtype::Q4_0 => bytes.as_chunks().0.iter().map(blocks::q4_0_integers).collect(),
            Dtype::Q8_0 => bytes.as_chunks().0.iter().map(blocks::q8_0_integers).collect(),
            other => panic!("weights of {other:?} are no integers with a scale"),
        }
    }

    /// Converts elements, counted as the file has them, to float32; every value of floats is exact,
    /// and of blocks what the format's own library makes of them.
    ///
    /// # Panics
    ///
    /// When `range` is outside the tensor or not as long as `out`, or begins or ends within a block.
    pub fn to_f32_row(&self, range: Range<usize>, out: &mut [f32]) {
        assert_eq!(range.len(), out.len(), "range and output differ in length");
        if let Some(encoded) = &self.encoded {
            return encoded.decode(&self.stored, self.shape[1], range, out);
        }
        let bytes = self.bytes_of(range);
        match self.dtype {
            Dtype::F32 => {
                let (values, _) = bytes.as_chunks();
                for (out, value) in out.iter_mut().zip(values) {
                    *out = f32::from_le_bytes(*value);
                }
            }
            Dtype::BF16 => {
                let (values, _) = bytes.as_chunks();
                for (out, value) in out.iter_mut().zip(values) {
                    *out = f32::from_bits(u32::from(u16::from_le_bytes(*value)) << 16);
                }
            }
            Dtype::F16 => f16_to_f32(&bytes, out),
            blocked => blocks::decode(blocked, &bytes, out),
        }
    }

    /// The whole tensor as float32, row by row.
    pub fn to_f32(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.elements()];
        if self.rows == RowOrder::Stored {
            self.to_f32_row(0..out.len(), &mut out);
            return out;
        }
        let rows = self.shape.first().copied().unwrap_or(0);
        for (row, out) in out.chunks_exact_mut(self.row(0).len().max(1)).take(rows).enumerate() {
            self.to_f32_row(self.row(row), out);
        }
        out
    }

    /// Asks the system to read the tensor ahead, if its file is mapped.
    pub fn prefetch(&self) {
        #[cfg(unix)]
        if let Some((map, offset)) = self.stored.map {
            // Advice only: without it the pages come when they are touched.
            let _ = map.advise_range(memmap2::Advice::WillNeed, offset, self.bytes().len());
        }
    }

    /// Gives back the memory of these bytes of the tensor once they have been used: their pages
    /// stop counting towards this process, and would be read again if the bytes were.
    ///
    /// # Panics
    ///
    /// When `bytes` is outside the tensor.
    pub fn release(&self, bytes: Range<usize>) {
        let length = self.stored.bytes[bytes.clone()].len();
        #[cfg(target_os = "linux")]
        if let Some((map, offset)) = self.stored.map
            && length > 0
        {
            // SAFETY: the mapping is file-backed, private and never written, so dropped pages come
            // back from the file with the same bytes and references to them stay valid; the range
            // was just checked to be inside the tensor, so no other mapping is touched.
            let _ = unsafe {
                map.unchecked_advise_range(
                    memmap2::UncheckedAdvice::DontNeed,
                    offset + bytes.start,
                    length,
                )
            };
        }
        #[cfg(not(target_os = "linux"))]
        let _ = length;
    }
}

impl Decoded<'_> {
    fn parts<'a>(&'a self, numbers: &'a Stored) -> Vec<&'a [u8]> {
        std::iter::once(numbers).chain(&self.others).map(|stored| &*stored.bytes).collect()
    }

    /// `elements` as blocks of `dtype`, or as f32.
    fn blocks(
        &self,
        dtype: Dtype,
        numbers: &Stored,
        columns: usize,
        elements: Range<usize>,
    ) -> Vec<u8> {
        if dtype == Dtype::F32 {
            let mut values = vec![0.0; elements.len()];
            self.decode(numbers, columns, elements, &mut values);
            return values.iter().flat_map(|value| value.to_le_bytes()).collect();
        }
        let parts = self.parts(numbers);
        let mut out = Vec::with_capacity(dtype.bytes_of(elements.len()));
        for element in elements.step_by(dtype.block().0) {
            let at = [element / columns, element % columns];
            self.values.push_block(dtype, &parts, at, &mut out);
        }
        out
    }

    /// Writes the values of `elements`, row by row.
    fn decode(&self, numbers: &Stored, columns: usize, elements: Range<usize>, out: &mut [f32]) {
        let parts = self.parts(numbers);
        let (mut at, mut out) = (elements.start, out);
        while at < elements.end {
            let (row, first) = (at / columns, at % columns);
            let end = columns.min(first + elements.end - at);
            let (now, rest) = out.split_at_mut(end - first);
            self.values.decode(&parts, self.order.as_deref(), row, first..end, now);
            (at, out) = (at + end - first, rest);
        }
    }
}

/// In which order a file has a tensor's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RowOrder {
    /// The first row first.
    Stored,
    /// Of each head, so many rows wide, those that turn by one angle beside each other: rows
    /// `j` and `width / 2 + j` are in places `2 j` and `2 j + 1`.
    Pairs {
        /// Rows of a head, even.
        width: usize,
    },
    /// Those of several tensors in turn, one of each.
    InTurn {
        /// How many tensors.
        step: usize,
        /// Which one this is.
        first: usize,
    },
    /// As columns, of several tensors in turn: a row does not lie in one piece.
    Columns {
        /// How many tensors.
        step: usize,
        /// Which one this is.
        first: usize,
    },
    /// Rows of some kinds, where groups have rows of four kinds each: all of the first kind first, group by group.
    Grouped {
        /// How many groups.
        groups: usize,
        /// Rows of each kind in a group, in their order there.
        kinds: [usize; 4],
        /// The first kind of this tensor, and the one behind its last.
        own: [usize; 2],
    },
}

impl RowOrder {
    /// The place of row `row`.
    fn place(self, row: usize) -> usize {
        match self {
            Self::Stored => row,
            Self::Pairs { width } => {
                let (head, of_head) = (row / width, row % width);
                head * width + of_head % (width / 2) * 2 + of_head / (width / 2)
            }
            Self::InTurn { step, first } => row * step + first,
            // Put together when it is asked for.
            Self::Columns { .. } => row,
            Self::Grouped { groups, kinds, own: [first, end] } => {
                let (mut row, mut before) = (row, kinds[..first].iter().sum::<usize>());
                for kind in &kinds[first..end] {
                    if row < groups * kind {
                        return row / kind * kinds.iter().sum::<usize>() + before + row % kind;
                    }
                    row -= groups * kind;
                    before += kind;
                }
                panic!("row {row} behind the last one of its tensor");
            }
        }
    }

    /// How many of `bytes` are this tensor's, where several share them.
    pub fn share(self, bytes: u64) -> u64 {
        match self {
            Self::Stored | Self::Pairs { .. } => bytes,
            Self::InTurn { step, .. } | Self::Columns { step, .. } => bytes / step as u64,
            Self::Grouped { kinds, own: [first, end], .. } => {
                let rows = |kinds: &[usize]| kinds.iter().sum::<usize>() as u64;
                bytes / rows(&kinds) * rows(&kinds[first..end])
            }
        }
    }
}

/// By the processor's own conversion where it has one.
fn f16_to_f32(bytes: &[u8], out: &mut [f32]) {
    if cfg!(target_endian = "little")
        && let Ok(values) = bytemuck::try_cast_slice::<u8, half::f16>(bytes)
    {
        values.convert_to_f32_slice(out);
        return;
    }
    const BLOCK: usize = 256;
    let mut aligned = [half::f16::ZERO; BLOCK];
    for (bytes, out) in bytes.chunks(2 * BLOCK).zip(out.chunks_mut(BLOCK)) {
        let aligned = &mut aligned[..out.len()];
        for (to, from) in aligned.iter_mut().zip(bytes.as_chunks().0) {
            *to = half::f16::from_le_bytes(*from);
        }
        aligned.convert_to_f32_slice(out);
    }
}

//! Matrices of folders as blocks of integers with scales: the same integers and the same scales, where these
//! are f16 or no less exact in f16, or scale nothing but zeros.

use half::f16;

use super::codes::Order;
use super::encoded::{Offset, Values};
use crate::Dtype;

impl Values {
    /// The blocks that a matrix of this shape can be handed out as, every value as it is; f32 where there
    /// are none. Its tensors but the first are in `parts`, whether its columns are in order in `in_order`; the
    /// first is asked for where scales do not decide it.
    pub fn block_type<'a>(
        &self,
        parts: &[&[u8]],
        [rows, columns]: [usize; 2],
        in_order: bool,
        numbers: impl Fn() -> Option<&'a [u8]>,
    ) -> Dtype {
        let bits = self.codes.bits;
        let groups = columns.div_ceil(self.group);
        let all = |is: &dyn Fn(usize, usize) -> bool| {
            (0..rows).all(|row| (0..groups).all(|group| is(row, group)))
        };
        let in_groups = |of: usize| self.group.is_multiple_of(of) && columns.is_multiple_of(of);
        let found = match self.offset {
            _ if !in_order || self.codes.order == Order::E4m3 => Dtype::F32,
            Offset::Table { .. } | Offset::Factor(_) => Dtype::F32,
            // Always of the same groups and scales.
            Offset::E2m1 => return Dtype::Mxfp4,
            Offset::Minima { .. } => match bits {
                4 if in_groups(64) => Dtype::Affine4,
                4 => Dtype::Q4_1,
                5 => Dtype::Q5_1,
                _ => Dtype::F32,
            },
            _ if bits == 4 && in_groups(128) => Dtype::Zeroed4,
            Offset::Middle(_) => match bits {
                4 => Dtype::Q4_0,
                8 => Dtype::Q8_0,
                _ => Dtype::F32,
            },
            // Zeros of symmetric matrices are all the same.
            Offset::Zeros { .. } => match bits {
                4 if all(&|row, group| self.zero(parts, row, group) == 8.0) => Dtype::Q4_0,
                8 if self.codes.order != Order::Signed
                    && all(&|row, group| self.zero(parts, row, group) == 128.0) =>
                {
                    Dtype::Q8_0
                }
                _ => Dtype::F32,
            },
        };
        let exact = |value: f32| f16::from_f32(value).to_f32() == value;
        // As MLX has groups of equal values, with scales of 1e-7 in bf16: another scale makes the same of them.
        let scales_nothing = |row, group| {
            let first = group * self.group;
            let mut codes = vec![0.0; self.group.min(columns - first)];
            let Some(numbers) = numbers() else { return false };
            self.codes.read(numbers, row, first, &mut codes);
            let zero = self.zero(parts, row, group);
            codes.iter().all(|code| *code == zero)
        };
        let halves = |row, group| {
            let scale = self.scales.at(parts, 1, row, group);
            let minimum = match self.offset {
                Offset::Minima { part } => self.scales.at(parts, part, row, group),
                _ => 0.0,
            };
            let scales =
                exact(scale) || f16::from_f32(scale).is_finite() && scales_nothing(row, group);
            exact(minimum) && scales
        };
        let fits = found == Dtype::F32 || in_groups(found.block().0) && all(&halves);
        if fits { found } else { Dtype::F32 }
    }

    /// Appends the block of type `dtype` that begins at `column` of row `row`.
    pub fn push_block(
        &self,
        dtype: Dtype,
        parts: &[&[u8]],
        [row, column]: [usize; 2],
        out: &mut Vec<u8>,
    ) {
        let group = column / self.group;
        let half = |value: f32| f16::from_f32(value).to_le_bytes();
        match dtype {
            Dtype::Mxfp4 => out.push(parts[1][self.scales.place(row, group)]),
            _ => out.extend(half(self.scales.at(parts, 1, row, group))),
        }
        match (dtype, self.offset) {
            (Dtype::Zeroed4, _) => out.extend(half(-self.zero(parts, row, group))),
            (_, Offset::Minima { part }) => {
                out.extend(half(self.scales.at(parts, part, row, group)));
            }
            _ => {}
        }
        let mut codes = [0.0; 128];
        let codes = &mut codes[..dtype.block().0];
        self.codes.read(parts[0], row, column, codes);
        if dtype == Dtype::Q8_0 {
            let middle = self.zero(parts, row, group);
            out.extend(codes.iter().map(|code| (code - middle) as i8 as u8));
            return;
        }
        for codes in codes.as_chunks::<32>().0 {
            if dtype == Dtype::Q5_1 {
                let fifth = |bits, (i, code): (usize, &f32)| bits | (*code as u32 >> 4) << i;
                let fifths: u32 = codes.iter().enumerate().fold(0, fifth);
                out.extend(fifths.to_le_bytes());
            }
            let (low, high) = codes.split_at(16);
            let pairs = low.iter().zip(high);
            out.extend(pairs.map(|(low, high)| *low as u8 & 15 | (*high as u8 & 15) << 4));
        }
    }
}

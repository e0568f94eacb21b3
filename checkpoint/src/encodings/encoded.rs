//! A matrix that lies in several tensors, and its values.

use std::fmt;
use std::ops::Range;

use half::{bf16, f16};

use super::codes::Codes;
use crate::Dtype;
use crate::header::Entry;
use crate::tensor::RowOrder;

/// What a quantised matrix is, as people call it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Encoding {
    /// Who made it: "GPTQ".
    pub method: &'static str,
    /// Its numbers: "int4".
    pub kind: String,
    /// Which of them share a scale: "groups of 128".
    pub scales: String,
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { method, kind, scales } = self;
        write!(f, "{method} {kind}, {scales}")
    }
}

/// A matrix whose tensors have been found and fit each other.
#[derive(Debug, Clone)]
pub(crate) struct Encoded {
    pub encoding: Encoding,
    /// Rows and columns; of one whose tensors have rows of others too, all rows of these.
    pub shape: [usize; 2],
    /// In which order its tensors have its rows.
    pub rows: RowOrder,
    /// The file and place of each tensor: the integers, the scales, and what `values` needs beside
    /// them.
    pub parts: Vec<Part>,
    pub values: Values,
}

/// A tensor of a matrix.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub name: String,
    pub file: usize,
    pub entry: Entry,
}

/// How the values of a matrix come out of its tensors, which are numbered as in [`Encoded::parts`].
#[derive(Debug, Clone)]
pub(crate) struct Values {
    /// The numbers, in tensor 0.
    pub codes: Codes,
    /// The scales, in tensor 1.
    pub scales: Scales,
    pub offset: Offset,
    /// Consecutive columns that share a scale.
    pub group: usize,
    /// The tensor that says which group a column is of, where it is not in their order.
    pub order: Option<usize>,
}

/// Where the scale of a row and a group lies.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scales {
    pub dtype: ScaleType,
    /// Rows that share one.
    pub rows: usize,
    /// Numbers from one row, and from one group, to the next.
    pub strides: [usize; 2],
}

/// What a scale is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum ScaleType {
    F32,
    F16,
    BF16,
    /// A byte: a power of two (OCP E8M0).
    E8m0,
    /// A byte: which of the 256 f32 of tensor `table`, times that f32 of tensor `factors` which so many scales
    /// share, plus `add`.
    Nested {
        table: usize,
        factors: usize,
        together: usize,
        add: f32,
    },
}

/// What beside a scale makes a value of a number `q`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Offset {
    /// `scale * (q - middle)`, for a middle that all have.
    Middle(f32),
    /// `scale * (q - zero)`: where the zeros of each row (counted as columns here) and group lie, in which
    /// tensor, and what they lack.
    Zeros { part: usize, codes: Codes, add: f32 },
    /// `scale * q + minimum`, minima lying as scales do.
    Minima { part: usize },
    /// `scale * value`, of the float whose four bits `q` is (OCP E2M1).
    E2m1,
    /// `scale * value`, of the sixteen f32 of a tensor, rounded to a type.
    Table { part: usize, rounded: ScaleType },
    /// `scale * q * factor`, from left to right.
    Factor(f32),
}

/// What four bits stand for.
const E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

impl Encoded {
    /// Size of all its tensors.
    pub fn bytes(&self) -> u64 {
        self.share(self.parts.iter().map(|part| part.entry.bytes()).sum())
    }

    /// How many of `bytes`, which are those of entries, are this matrix's.
    pub fn share(&self, bytes: u64) -> u64 {
        match self.rows {
            RowOrder::Grouped { .. } => self.rows.share(bytes),
            // Their entries know it.
            _ => bytes,
        }
    }
}

impl Scales {
    /// One for each row and group, lying so.
    pub fn by_row(dtype: Dtype, groups: usize) -> Self {
        Self { dtype: dtype.into(), rows: 1, strides: [groups, 1] }
    }

    /// Scales before it.
    pub fn place(self, row: usize, group: usize) -> usize {
        row / self.rows * self.strides[0] + group * self.strides[1]
    }

    /// The scale in tensor `part` of all of a matrix.
    pub fn at(self, parts: &[&[u8]], part: usize, row: usize, group: usize) -> f32 {
        let (bytes, number) = (parts[part], self.place(row, group));
        let half = || bytes.as_chunks().0[number];
        match self.dtype {
            ScaleType::F16 => f16::from_le_bytes(half()).to_f32(),
            ScaleType::BF16 => bf16::from_le_bytes(half()).to_f32(),
            ScaleType::F32 => float(bytes, number),
            ScaleType::E8m0 => power(bytes[number]),
            ScaleType::Nested { table, factors, together, add } => {
                let factor = float(parts[factors], number / together);
                float(parts[table], bytes[number].into()) * factor + add
            }
        }
    }
}

/// Number `number` of f32.
fn float(bytes: &[u8], number: usize) -> f32 {
    f32::from_le_bytes(bytes.as_chunks().0[number])
}

/// `2^(exponent - 127)`, of which the smallest is subnormal, and the largest no number.
fn power(exponent: u8) -> f32 {
    f32::from_bits(match exponent {
        0 => 0x0040_0000,
        255 => f32::NAN.to_bits(),
        _ => u32::from(exponent) << 23,
    })
}

impl ScaleType {
    /// What of it comes nearest to `value`.
    fn nearest(self, value: f32) -> f32 {
        match self {
            Self::F16 => f16::from_f32(value).to_f32(),
            Self::BF16 => bf16::from_f32(value).to_f32(),
            Self::F32 | Self::E8m0 | Self::Nested { .. } => value,
        }
    }
}

impl From<Dtype> for ScaleType {
    fn from(dtype: Dtype) -> Self {
        match dtype {
            Dtype::F16 => Self::F16,
            Dtype::BF16 => Self::BF16,
            _ => Self::F32,
        }
    }
}

impl Values {
    /// The group of each of `columns` columns, if `bytes` do not have them in order; what is wrong with
    /// them.
    pub fn groups_of(&self, bytes: &[u8], columns: usize) -> Result<Option<Vec<u32>>, String> {
        let groups = columns.div_ceil(self.group);
        let order: Vec<u32> =
            bytes.as_chunks().0.iter().map(|it| u32::from_le_bytes(*it)).collect();
        if let Some(column) = order.iter().position(|group| *group as usize >= groups) {
            return Err(format!(
                "has group {} for column {column}, but there are {groups}: the file is damaged; \
                 download it again",
                order[column] as i32
            ));
        }
        let in_order = order.iter().enumerate().all(|(i, group)| *group as usize == i / self.group);
        Ok((!in_order).then_some(order))
    }

    /// What is taken off the numbers of a row and a group before they are scaled.
    pub fn zero(&self, parts: &[&[u8]], row: usize, group: usize) -> f32 {
        match self.offset {
            Offset::Middle(middle) => middle,
            Offset::Minima { .. } | Offset::E2m1 | Offset::Table { .. } | Offset::Factor(_) => 0.0,
            Offset::Zeros { part, codes, add } => {
                let zero = codes.at(parts[part], group, row) + add;
                // One less than zero is the largest number.
                if add > 0.0 && zero == (1u32 << codes.bits) as f32 { 0.0 } else { zero }
            }
        }
    }

    /// Writes the values of `columns` of row `row`; `order` is the group of each column of the matrix, where
    /// they are not in order.
    pub fn decode(
        &self,
        parts: &[&[u8]],
        order: Option<&[u32]>,
        row: usize,
        columns: Range<usize>,
        out: &mut [f32],
    ) {
        self.codes.read(parts[0], row, columns.start, out);
        // Nothing is added, so that -0 stays what it is.
        let alone = |scale: f32, q: f32| match self.offset {
            Offset::E2m1 => Some(scale * E2M1[q as usize]),
            Offset::Table { part, rounded } => {
                Some(rounded.nearest(scale * float(parts[part], q as usize)))
            }
            Offset::Factor(factor) => Some(scale * q * factor),
            Offset::Middle(_) | Offset::Zeros { .. } | Offset::Minima { .. } => None,
        };
        let mut known = None;
        // Scale, and what is taken off before or added behind it.
        let mut of_group = (0.0, 0.0, 0.0);
        for (column, value) in columns.zip(out) {
            let group = match order {
                Some(order) => order[column] as usize,
                None => column / self.group,
            };
            if known != Some(group) {
                known = Some(group);
                let minimum = match self.offset {
                    Offset::Minima { part } => self.scales.at(parts, part, row, group),
                    _ => 0.0,
                };
                let scale = self.scales.at(parts, 1, row, group);
                of_group = (scale, self.zero(parts, row, group), minimum);
            }
            let (scale, zero, minimum) = of_group;
            *value = alone(scale, *value).unwrap_or(scale * (*value - zero) + minimum);
        }
    }
}

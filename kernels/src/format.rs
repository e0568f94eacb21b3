//! How packed weights lie in memory.

use half::f16;

/// Output rows of a block of packed weights.
pub const LANES: usize = 16;

/// Columns of a row that share a scale, where weights are integers.
pub const GROUP: usize = 32;

/// Bytes of the scales of a group of a block, behind its weights.
pub(crate) const SCALES: usize = LANES * size_of::<f16>();

/// How packed weights are stored, and what meets them. `blocks` counts [`LANES`] output rows each;
/// `groups` counts [`GROUP`] columns each, the last one padded with zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// `[blocks, columns, 16]` f32.
    F32,
    /// `[blocks, columns, 16]` bfloat16.
    Bf16,
    /// As [`Format::Bf16`], for activations that are bfloat16 too; sums are f32.
    Bf16Rounded,
    /// `[blocks, columns, 16]` IEEE half.
    F16,
    /// `[blocks, groups]` of 32 columns and their scales, as
    /// [`pack_block`](crate::quantise::pack_block) has them.
    Int8,
    /// As [`Format::Int8`], of six bits.
    Int6,
    /// As [`Format::Int8`], of four bits.
    Int4,
}

impl Format {
    /// Every format.
    pub const ALL: [Self; 7] =
        [Self::F32, Self::Bf16, Self::Bf16Rounded, Self::F16, Self::Int8, Self::Int6, Self::Int4];

    /// The name in symbols and files.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Bf16Rounded => "bf16_rounded",
            Self::F16 => "f16",
            Self::Int8 => "int8",
            Self::Int6 => "int6",
            Self::Int4 => "int4",
        }
    }

    /// The format with the same bytes that meets f32, where there is one.
    pub fn stored(self) -> Self {
        match self {
            Self::Bf16Rounded => Self::Bf16,
            other => other,
        }
    }

    /// Whether weights are integers with scales.
    pub fn is_quantised(self) -> bool {
        matches!(self, Self::Int8 | Self::Int6 | Self::Int4)
    }

    /// Whether matrices of so many columns can be [compressed](crate::compress).
    pub fn is_compressible(self, columns: usize) -> bool {
        matches!(self, Self::F32 | Self::Bf16 | Self::Bf16Rounded) && columns.is_multiple_of(8)
    }

    /// Bytes of the weights of one block.
    pub fn block_bytes(self, columns: usize) -> usize {
        match self {
            Self::F32 => columns * LANES * 4,
            Self::Bf16 | Self::Bf16Rounded | Self::F16 => columns * LANES * 2,
            Self::Int8 | Self::Int6 | Self::Int4 => columns.div_ceil(GROUP) * self.group_bytes(),
        }
    }

    /// Bytes of a group of a block, its weights and their scales: none for float formats.
    pub fn group_bytes(self) -> usize {
        let bits = match self {
            Self::F32 | Self::Bf16 | Self::Bf16Rounded | Self::F16 => return 0,
            Self::Int8 => 8,
            Self::Int6 => 6,
            Self::Int4 => 4,
        };
        GROUP * LANES * bits / 8 + SCALES
    }
}

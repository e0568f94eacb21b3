//! How packed weights lie in memory.

use half::f16;

/// Output rows of a block of packed weights.
pub const LANES: usize = 16;

/// Columns of a row that share a scale, where weights are integers.
pub const GROUP: usize = 32;

/// Bytes of an f16 of each row of a block: of the scales of a group of ours, behind its weights.
pub(crate) const SCALES: usize = LANES * size_of::<f16>();

/// The levels of IQ4_NL (`ggml-common.h`).
pub(crate) const IQ4: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Twice the floats of four bits (OCP E2M1).
pub(crate) const E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

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
    /// [`pack_block`](crate::quantise::pack_block) has them: ggml's Q8_0 in another order.
    Int8,
    /// As [`Format::Int8`], for activations of eight bits.
    Int8Rounded,
    /// As [`Format::Int8`], of six bits.
    Int6,
    /// As [`Format::Int8`], of four bits: ggml's Q4_0 in another order.
    Int4,
    /// Integers of four bits with minima. Scales and minima of groups are bytes, in units that eight
    /// groups have in common: as [`Format::Q4K`], but of eight bits, and of any number of columns. Activations have
    /// eight bits too.
    Nested4,
    /// ggml's Q4_1 in another order, as [`pack_rows`](crate::ggml::pack_rows) has it.
    Q4_1,
    /// As [`Format::Q4_1`], ggml's Q5_0.
    Q5_0,
    /// As [`Format::Q4_1`], ggml's Q5_1.
    Q5_1,
    /// As [`Format::Q4_1`], ggml's Q4_K: columns fill super-blocks of 256.
    Q4K,
    /// As [`Format::Q4K`], ggml's Q5_K.
    Q5K,
    /// As [`Format::Q4K`], ggml's Q6_K.
    Q6K,
    /// Integers of four bits, a scale and a minimum for each 64 columns, which these fill: MLX's.
    Affine4,
    /// Integers of four bits, a scale and a zero for each 128 columns, which these fill: what AWQ, GPTQ
    /// and compressed-tensors have.
    Zeroed4,
    /// As [`Format::Q4K`], ggml's Q2_K.
    Q2K,
    /// As [`Format::Q4K`], ggml's Q3_K.
    Q3K,
    /// As [`Format::Q4_1`], ggml's IQ4_NL: four bits stand for sixteen levels.
    Iq4Nl,
    /// As [`Format::Iq4Nl`], ggml's IQ4_XS: columns fill super-blocks of 256.
    Iq4Xs,
    /// As [`Format::Iq4Nl`], ggml's MXFP4.
    Mxfp4,
}

/// How the integers of a format lie.
#[derive(Clone, Copy)]
pub(crate) struct Integers {
    pub bits: usize,
    /// Groups that have a head in common, and its bytes.
    pub together: usize,
    pub head: usize,
    /// Bytes of scales behind the weights of a group.
    pub scales: usize,
    /// Whether weights have minima; integers count from zero then, and from the middle otherwise.
    pub minima: bool,
}

impl Integers {
    /// Bytes of the weights of a group of a block.
    pub fn weights(self) -> usize {
        GROUP * LANES * self.bits / 8
    }

    /// Bytes of a group of a block, its weights and their scales.
    pub fn group(self) -> usize {
        self.weights() + self.scales
    }
}

impl Format {
    /// Every format.
    pub const ALL: [Self; 22] = [
        Self::F32,
        Self::Bf16,
        Self::Bf16Rounded,
        Self::F16,
        Self::Int8,
        Self::Int8Rounded,
        Self::Int6,
        Self::Int4,
        Self::Nested4,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Affine4,
        Self::Zeroed4,
        Self::Q2K,
        Self::Q3K,
        Self::Iq4Nl,
        Self::Iq4Xs,
        Self::Mxfp4,
    ];

    /// The name in symbols and files.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Bf16Rounded => "bf16_rounded",
            Self::F16 => "f16",
            Self::Int8 => "int8",
            Self::Int8Rounded => "int8_rounded",
            Self::Int6 => "int6",
            Self::Int4 => "int4",
            Self::Nested4 => "nested4",
            Self::Q4_1 => "q4_1",
            Self::Q5_0 => "q5_0",
            Self::Q5_1 => "q5_1",
            Self::Q4K => "q4_k",
            Self::Q5K => "q5_k",
            Self::Q6K => "q6_k",
            Self::Affine4 => "affine4",
            Self::Zeroed4 => "zeroed4",
            Self::Q2K => "q2_k",
            Self::Q3K => "q3_k",
            Self::Iq4Nl => "iq4_nl",
            Self::Iq4Xs => "iq4_xs",
            Self::Mxfp4 => "mxfp4",
        }
    }

    /// The format with the same bytes that meets more of the bits of activations, where there is one.
    pub fn stored(self) -> Self {
        match self {
            Self::Bf16Rounded => Self::Bf16,
            Self::Int8Rounded => Self::Int8,
            other => other,
        }
    }

    /// Whether weights are integers with scales.
    pub fn is_quantised(self) -> bool {
        self.integers().is_some()
    }

    /// Whether matrices of so many columns can be [compressed](crate::compress).
    pub fn is_compressible(self, columns: usize) -> bool {
        matches!(self, Self::F32 | Self::Bf16 | Self::Bf16Rounded) && columns.is_multiple_of(8)
    }

    /// Bytes of the weights of one block.
    ///
    /// # Panics
    ///
    /// When columns do not fill super-blocks, of formats of files that have them.
    pub fn block_bytes(self, columns: usize) -> usize {
        match self.integers() {
            Some(integers) => {
                let groups = columns.div_ceil(GROUP);
                let Integers { together, head, .. } = integers;
                assert!(
                    together == 1
                        || self == Self::Nested4
                        || columns.is_multiple_of(together * GROUP),
                    "{columns} columns of {self:?}"
                );
                groups.div_ceil(together) * head + groups * integers.group()
            }
            None if self == Self::F32 => columns * LANES * 4,
            None => columns * LANES * 2,
        }
    }

    /// What integers of four bits stand for, where that is not a number of their own.
    pub(crate) fn levels(self) -> Option<&'static [i8; 16]> {
        match self {
            Self::Iq4Nl | Self::Iq4Xs => Some(&IQ4),
            Self::Mxfp4 => Some(&E2M1),
            _ => None,
        }
    }

    /// How its integers lie; none where weights are floats.
    pub(crate) fn integers(self) -> Option<Integers> {
        let plain = |bits| Integers { bits, together: 1, head: 0, scales: SCALES, minima: false };
        let with_minima = |bits| Integers { scales: 2 * SCALES, minima: true, ..plain(bits) };
        let scales = 2 * LANES;
        let nested = |bits| Integers { bits, together: 8, head: 2 * SCALES, scales, minima: true };
        let shared = |together| Integers { together, scales: 0, ..nested(4) };
        Some(match self {
            Self::F32 | Self::Bf16 | Self::Bf16Rounded | Self::F16 => return None,
            Self::Int8 | Self::Int8Rounded => plain(8),
            Self::Int6 => plain(6),
            Self::Int4 => plain(4),
            Self::Q4_1 => with_minima(4),
            Self::Q5_0 => plain(5),
            Self::Q5_1 => with_minima(5),
            Self::Affine4 => shared(2),
            Self::Zeroed4 => shared(4),
            Self::Nested4 | Self::Q4K => nested(4),
            Self::Q5K => nested(5),
            Self::Q6K => Integers { head: SCALES, minima: false, ..nested(6) },
            Self::Q2K => nested(2),
            Self::Q3K => {
                let head = SCALES + 3 * LANES * size_of::<u32>();
                Integers { head, scales: 0, minima: false, ..nested(3) }
            }
            Self::Iq4Nl => plain(4),
            Self::Iq4Xs => Integers { head: SCALES, scales: LANES, minima: false, ..nested(4) },
            Self::Mxfp4 => Integers { scales: LANES, ..plain(4) },
        })
    }
}

//! Element types of weights: floats, and the blocks of integers with scales that GGUF files hold, or that
//! matrices of quantised folders are handed out as.

/// The element types that weights may have: whoever packs them answers for each, so that the list is
/// exhaustive.
///
/// A row of a blocked type is whole blocks, of [`block`](Self::block) elements and bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// The upper half of single precision.
    BF16,
    /// Integers of four bits, from -8 on, times a scale.
    Q4_0,
    /// Integers of four bits times a scale, plus an offset.
    Q4_1,
    /// As [`Dtype::Q4_0`], of five bits, from -16 on.
    Q5_0,
    /// As [`Dtype::Q4_1`], of five bits.
    Q5_1,
    /// Integers of eight bits times a scale.
    Q8_0,
    /// Integers of two bits; scales and offsets of 16 elements are four bits times those of 256.
    Q2K,
    /// Integers of three bits, from -4 on; scales of 16 elements are six bits times that of 256.
    Q3K,
    /// Integers of four bits; scales and offsets of 32 elements are six bits times those of 256.
    Q4K,
    /// As [`Dtype::Q4K`], of five bits.
    Q5K,
    /// Integers of six bits, from -32 on; scales of 16 elements are eight bits times that of 256.
    Q6K,
    /// Sixteen levels that lie denser around zero, times a scale.
    Iq4Nl,
    /// The levels of [`Dtype::Iq4Nl`]; scales of 32 elements are six bits times that of 256.
    Iq4Xs,
    /// Floats of four bits times a power of two (OCP Microscaling).
    Mxfp4,
    /// As [`Dtype::Q4_1`], of 64 elements; no type of GGUF's.
    Affine4,
    /// Integers of four bits, to which a zero with its sign turned is added, times a scale; no type of
    /// GGUF's.
    Zeroed4,
}

impl Dtype {
    /// Every type that tensors of files have.
    pub const ALL: [Self; 16] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Iq4Nl,
        Self::Iq4Xs,
        Self::Mxfp4,
    ];

    pub(crate) fn from_safetensors(dtype: safetensors::Dtype) -> Option<Self> {
        match dtype {
            safetensors::Dtype::F32 => Some(Self::F32),
            safetensors::Dtype::F16 => Some(Self::F16),
            safetensors::Dtype::BF16 => Some(Self::BF16),
            _ => None,
        }
    }

    /// Elements and bytes of the smallest piece that can stand alone: one element of floats, a block of
    /// the others.
    pub fn block(self) -> (usize, usize) {
        match self {
            Self::F32 => (1, 4),
            Self::F16 | Self::BF16 => (1, 2),
            Self::Q4_0 | Self::Iq4Nl => (32, 18),
            Self::Q4_1 => (32, 20),
            Self::Q5_0 => (32, 22),
            Self::Q5_1 => (32, 24),
            Self::Q8_0 => (32, 34),
            Self::Q2K => (256, 84),
            Self::Q3K => (256, 110),
            Self::Q4K => (256, 144),
            Self::Q5K => (256, 176),
            Self::Q6K => (256, 210),
            Self::Iq4Xs => (256, 136),
            Self::Mxfp4 => (32, 17),
            Self::Affine4 => (64, 36),
            Self::Zeroed4 => (128, 68),
        }
    }

    /// Bytes of so many elements, a whole number of blocks.
    pub fn bytes_of(self, elements: usize) -> usize {
        let (of_block, bytes) = self.block();
        elements / of_block * bytes
    }

    /// The name: "bf16", "q4_k".
    pub fn as_str(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::Q4_0 => "q4_0",
            Self::Q4_1 => "q4_1",
            Self::Q5_0 => "q5_0",
            Self::Q5_1 => "q5_1",
            Self::Q8_0 => "q8_0",
            Self::Q2K => "q2_k",
            Self::Q3K => "q3_k",
            Self::Q4K => "q4_k",
            Self::Q5K => "q5_k",
            Self::Q6K => "q6_k",
            Self::Iq4Nl => "iq4_nl",
            Self::Iq4Xs => "iq4_xs",
            Self::Mxfp4 => "mxfp4",
            Self::Affine4 => "affine4",
            Self::Zeroed4 => "zeroed4",
        }
    }
}

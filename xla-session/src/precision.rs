//! How weights lie in memory, and what meets them.

use std::str::FromStr;

use kernels::KvFormat;

use crate::{Error, Result};

/// How weights lie in memory, and what activations they meet. Sums, norms and attention are
/// float32 in every case, over keys and values that are kept as [`Precision::kv_cache`] says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Precision {
    /// As the checkpoint stores them (bf16, f16 or f32), widened inside the compiled graph: the
    /// same arithmetic as [`F32`](Self::F32) at the checkpoint's size, or less where
    /// [compressed](kernels::compress).
    #[default]
    Stored,
    /// Widened to float32 on upload.
    F32,
    /// Rounded to bfloat16 on upload, and activations before each product with them, as PyTorch and
    /// llama.cpp compute bf16 models: prompts take about three fifths of the time of
    /// [`Stored`](Self::Stored) on a CPU with AVX-512 BF16, at the same size for a bf16 checkpoint. GPUs
    /// of NVIDIA round those of long prompts only, and devices of Vulkan none. A token differs rarely.
    Bf16,
    /// Rounded to integers of 8 bits in groups of 32 with an f16 scale each, on upload; on CPUs activations
    /// are rounded to 16 bits before each product with them. A token differs rarely.
    Int8,
    /// As [`Int8`](Self::Int8), but on CPUs layers round activations to 8 bits, but for the
    /// [ends](checkpoint::architecture::Architecture::ends), as llama.cpp does everywhere. On CPUs with VNNI or tiles
    /// prompts and steps of many sequences are faster.
    W8a8,
    /// Rounded to integers of 4 bits in groups of 32 with a scale and a minimum each, on GPUs without
    /// minima. The token embedding, the output projection and the
    /// [ends](checkpoint::architecture::Architecture::ends) of the layers have 6 bits, on GPUs 8. Layers
    /// that a checkpoint has as Q4_0 stay as they are. On CPUs what has minima meets activations of 8 bits, all
    /// else of 16. The least memory, and answers that differ.
    Int4,
}

impl Precision {
    /// Every precision, by the name it is chosen with.
    pub const ALL: [(&'static str, Self); 6] = [
        ("stored", Self::Stored),
        ("f32", Self::F32),
        ("bf16", Self::Bf16),
        ("int8", Self::Int8),
        ("w8a8", Self::W8a8),
        ("int4", Self::Int4),
    ];

    /// The name it is chosen with.
    pub fn as_str(self) -> &'static str {
        Self::ALL.iter().find(|(_, p)| *p == self).map_or("", |(name, _)| name)
    }

    /// How the KV cache stores keys and values on CPUs unless told: rounded to f16, as llama.cpp
    /// has it, where the rest is rounded too, and exact where that is.
    pub fn kv_cache(self) -> KvFormat {
        match self {
            Self::Stored | Self::F32 => KvFormat::F32,
            Self::Bf16 | Self::Int8 | Self::W8a8 | Self::Int4 => KvFormat::F16,
        }
    }
}

impl FromStr for Precision {
    type Err = Error;

    fn from_str(value: &str) -> Result<Self> {
        Error::by_name("precision", value, &Self::ALL)
    }
}

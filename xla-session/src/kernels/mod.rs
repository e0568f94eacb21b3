//! Matrix products on packed weights, `y[m, n] = sum_k x[m, k] * w[n, k]` in f32, and attention
//! over the KV cache (`attention.rs`).
//!
//! Weights are packed in blocks of [`LANES`] output rows, so that one column of a block is one
//! vector, and keep their stored [`Format`] until they are in registers. Floats are widened there,
//! and all arithmetic is f32's; that of [`Format::Bf16Rounded`] multiplies numbers that the caller
//! has rounded to bfloat16, of which some CPUs take two to an instruction. Floats may be compressed
//! without loss (`compressed/`). Integers meet activations that are rounded to 16 bits in groups of
//! [`GROUP`] (`integers.rs`), which costs 2e-5 of a result. Where only the largest of all products is
//! wanted, integers are read in two parts: the high bits of all rows (`coarse.rs`), and the low ones
//! of those that it can be (`refine.rs`, `fine.rs`); and of floats only the rows that it can be, by
//! what a sketch of all says (`candidates.rs`).
//!
//! One algorithm ([`product()`]) is written over a vector of sixteen f32 (`vector.rs`): `floats.rs`
//! and `integers.rs` are its innermost loops, `tile.rs` what they share, `walk.rs` decides which
//! rows meet which weights. Each instruction set is one file that implements the vector;
//! `avx512_bf16.rs` and `nibbles.rs` are what some CPUs have beside it.

/// Eight copies of a body, or those listed, in each of which `$i` is a constant.
macro_rules! unroll {
    ($i:ident, $body:block) => {
        unroll!($i, $body, 0 1 2 3 4 5 6 7)
    };
    ($i:ident, $body:block, $($value:literal)*) => {$({
        const $i: usize = $value;
        $body
    })*};
}

mod attention;
mod candidates;
mod coarse;
mod compressed;
mod fine;
mod floats;
mod integers;
mod kv_cache;
mod refine;
mod scratch;
mod tile;
mod vector;
mod walk;

mod portable;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx2_nibbles;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512_bf16;
#[cfg(target_arch = "x86_64")]
mod avx512_nibbles;
#[cfg(target_arch = "x86_64")]
mod nibbles;

#[cfg(test)]
mod tests;

pub use attention::{Attention, AttentionKernel};
pub use candidates::{Candidates, candidates};
pub use coarse::{coarse, coarse_for};
pub use compressed::{
    Rows, compress, compressed_product, compressed_product_for, compressed_row, decompress,
    most_bytes,
};
pub use kv_cache::{KV_BLOCK, KvFormat};
pub use refine::{Refine, RefineKernel, refine, refine_for};

use crate::quantise::{CHUNK, GROUP, SCALES};
use checkpoint::Dtype;

/// Output rows of a block of packed weights.
pub const LANES: usize = 16;

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

    /// Whether matrices of so many columns can be [compressed](compress).
    pub fn is_compressible(self, columns: usize) -> bool {
        matches!(self, Self::F32 | Self::Bf16 | Self::Bf16Rounded) && columns.is_multiple_of(8)
    }

    /// Whether a block can be [split](crate::quantise::split_block) in a coarse part and a fine one.
    pub fn is_splittable(self) -> bool {
        self.fine_bits() > 0
    }

    /// Bits of a weight that its fine part has: none where weights can't be split.
    pub(crate) fn fine_bits(self) -> usize {
        match self {
            Self::Int8 => 4,
            Self::Int6 => 2,
            _ => 0,
        }
    }

    /// Bytes of the fine part of one row: none where weights can't be split.
    pub fn fine_row_bytes(self, columns: usize) -> usize {
        match self.fine_bits() {
            0 => 0,
            bits => columns.div_ceil(CHUNK) * (CHUNK * bits / 8 + SCALES),
        }
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

impl From<Dtype> for Format {
    fn from(dtype: Dtype) -> Self {
        match dtype {
            Dtype::F32 => Self::F32,
            Dtype::F16 => Self::F16,
            Dtype::BF16 => Self::Bf16,
        }
    }
}

/// The operands of one call: rows of `x` times a run of consecutive blocks of one weight matrix.
///
/// No alignment beyond that of the element types is needed; weights that start at a multiple of
/// 64 bytes are read fastest.
#[derive(Clone, Copy, Debug)]
pub struct Product {
    /// The first block of the run.
    pub weights: *const u8,
    /// For compressed weights, the byte offset of each block of the run from `weights`, which then
    /// is the matrix's first byte; not read otherwise.
    pub index: *const u64,
    /// `[rows, columns]` f32, or bfloat16 for [`Format::Bf16Rounded`], dense; only the first `used`
    /// rows are read.
    pub x: *const u8,
    /// `[rows, stride]`; element (0, 0) is lane 0 of the run's first block.
    pub y: *mut f32,
    /// Rows of `x` and `y`.
    pub rows: usize,
    /// Rows that are wanted, at most `rows`; the others become 0.0 in `y` without being computed.
    pub used: usize,
    /// Columns of `x`, unpadded.
    pub columns: usize,
    /// Blocks in the run.
    pub blocks: usize,
    /// Elements between rows of `y`, at least `blocks * 16`.
    pub stride: usize,
}

/// A kernel for one format and instruction set.
///
/// # Safety
///
/// The CPU has the instruction set, every pointer of the [`Product`] is valid for the shape that
/// its field states in the kernel's format, and nothing else accesses the `[rows, blocks * 16]`
/// elements of `y` during the call.
pub type Kernel = unsafe fn(&Product);

/// An instruction set that kernels are written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Isa {
    /// Whatever the compiler's baseline has.
    Portable,
    /// x86-64 with AVX2, FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// And with AVX-VNNI.
    #[cfg(target_arch = "x86_64")]
    AvxVnni,
    /// x86-64 with AVX-512 F, BW, DQ and VL.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// And with AVX-512 VNNI.
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
    /// And with AVX-512 BF16.
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16,
}

impl Isa {
    /// The fastest one that this CPU has.
    pub fn detect() -> Self {
        Self::all_here().pop().unwrap_or(Self::Portable)
    }

    /// All that this CPU has, slowest first.
    pub fn all_here() -> Vec<Self> {
        let mut all = vec![Self::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            all.extend(avx2::detected().then_some(Self::Avx2));
            all.extend(avx2::vnni_detected().then_some(Self::AvxVnni));
            all.extend(avx512::detected().then_some(Self::Avx512));
            all.extend(avx512::vnni_detected().then_some(Self::Avx512Vnni));
            all.extend(avx512_bf16::detected().then_some(Self::Avx512Bf16));
        }
        all
    }
}

/// The fastest kernel for `format` on this CPU.
pub fn product(format: Format) -> Kernel {
    product_for(format, Isa::detect())
}

/// The kernel for `format` in the instructions of `isa`, whether or not this CPU has them.
pub fn product_for(format: Format, isa: Isa) -> Kernel {
    match isa {
        Isa::Portable => kernel_of::<portable::Portable>(format),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => integers_of::<avx2::Avx2>(format),
        #[cfg(target_arch = "x86_64")]
        Isa::AvxVnni => integers_of::<avx2::Avx2<true>>(format),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => kernel_of::<avx512::Avx512<false>>(format),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Bf16 if format == Format::Bf16Rounded => walk::paired_bf16,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Vnni | Isa::Avx512Bf16 => integers_of::<avx512::Avx512<true>>(format),
    }
}

/// The fastest attention over a cache of `format` on this CPU.
pub fn attention(format: KvFormat) -> AttentionKernel {
    attention_for(format, Isa::detect())
}

/// Attention over a cache of `format` in the instructions of `isa`, whether or not this CPU has them.
pub fn attention_for(format: KvFormat, isa: Isa) -> AttentionKernel {
    match isa {
        Isa::Portable => attention_of::<portable::Portable>(format),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::AvxVnni => attention_of::<avx2::Avx2>(format),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 | Isa::Avx512Vnni | Isa::Avx512Bf16 => {
            attention_of::<avx512::Avx512<false>>(format)
        }
    }
}

fn attention_of<V: vector::Vector>(format: KvFormat) -> AttentionKernel {
    match format {
        KvFormat::F32 => attention::attention::<V, floats::F32>,
        KvFormat::F16 => attention::attention::<V, floats::F16>,
    }
}

/// As [`kernel_of`], where instructions multiply bytes.
#[cfg(target_arch = "x86_64")]
fn integers_of<V: nibbles::Bytes>(format: Format) -> Kernel {
    match format {
        Format::Int4 => walk::one_row_or_more::<V, nibbles::Nibbles, integers::Int4>,
        other => kernel_of::<V>(other),
    }
}

fn kernel_of<V: vector::Vector>(format: Format) -> Kernel {
    match format {
        Format::F32 => walk::floats::<V, floats::F32>,
        Format::Bf16 => walk::floats::<V, floats::Bf16>,
        Format::Bf16Rounded => walk::widened_bf16::<V>,
        Format::F16 => walk::floats::<V, floats::F16>,
        Format::Int8 => walk::integers::<V, integers::Int8>,
        Format::Int6 => walk::integers::<V, integers::Int6>,
        Format::Int4 => walk::integers::<V, integers::Int4>,
    }
}

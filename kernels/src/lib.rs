//! What a CPU computes of a language model: matrix products on packed weights,
//! `y[m, n] = sum_k x[m, k] * w[n, k]` in f32, attention (`attention.rs`) and short convolutions
//! (`convolution.rs`) over the KV cache, linear attention (`gated_delta.rs`); and the packing of
//! weights as small integers ([`quantise`]).
//!
//! Weights are packed in blocks of [`LANES`] output rows, so that one column of a block is one
//! vector, and keep their stored [`Format`] until they are in registers. Floats are widened there,
//! and all arithmetic is f32's; that of [`Format::Bf16Rounded`] multiplies numbers that the caller
//! has rounded to bfloat16, of which some CPUs take two to an instruction. Floats may be compressed
//! without loss (`compressed/`). Integers meet activations that are rounded to 16 bits (15 for Q6_K) in
//! groups of [`GROUP`] (`integers.rs`), which costs 2e-5 of a result; [`Format::Nested4`], whose own rounding costs
//! 7e-2 of a weight, 8 bits, and so, where it is asked for, [`Format::Int8Rounded`]. Where only the largest of all products is
//! wanted, only the floats of rows that it can be are read, by what a sketch of all says
//! (`candidates.rs`).
//!
//! One algorithm ([`product()`]) is written over a vector of sixteen f32 (`vector.rs`): `floats.rs`
//! and `integers.rs` are its innermost loops, `tile.rs` what they share, `walk.rs` decides which
//! rows meet which weights. Each instruction set is one file that implements the vector;
//! `avx512_bf16.rs`, `quads.rs`, `neon_bf16.rs` and `neon_quads.rs` are what some CPUs have beside it.
//! For many rows of integers there are two more algorithms: dozens of them (`many_rows.rs`, AVX-512 VNNI), and
//! tiles (`amx.rs`, `amx_integers.rs`), which multiply bfloat16 weights too (`amx_floats.rs`). What a CPU could do at best
//! is measured with the same vectors ([`limits`]).

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

/// `for $i in 0..$end` where so much is inlined, so often, that what compiling takes counts: in place of ranges and of
/// iterators it takes a third off that of the crate. The body ends with each turn: it has no `continue`.
macro_rules! each {
    ($i:ident in $end:expr, $body:block) => {{
        let mut $i = 0;
        while $i < $end {
            $body
            $i += 1;
        }
    }};
}

mod format;
mod kv_cache;
mod product;

pub mod ggml;
pub mod limits;
pub mod quantise;

mod argmax;
mod attention;
mod candidates;
mod cap;
mod compressed;
mod convolution;
mod decoded;
mod floats;
mod gate;
mod gated_delta;
mod gather;
mod head_gates;
mod integer_tile;
mod integers;
mod norm;
mod rope;
mod rounded;
mod scales;
mod scratch;
mod tile;
mod vector;
mod walk;

mod portable;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx2_quads;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512_bf16;
#[cfg(target_arch = "x86_64")]
mod avx512_quads;
#[cfg(target_arch = "x86_64")]
mod many_rows;
#[cfg(target_arch = "x86_64")]
mod prefetching;
#[cfg(target_arch = "x86_64")]
mod quads;

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod amx_activations;
#[cfg(target_arch = "x86_64")]
mod amx_floats;
#[cfg(target_arch = "x86_64")]
mod amx_integers;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "aarch64")]
mod neon_bf16;
#[cfg(target_arch = "aarch64")]
mod neon_quads;

mod dispatch;
mod isa;

pub use argmax::{NOT_A_NUMBER, argmax};
pub use attention::{Attention, AttentionKernel};
pub use candidates::{Candidates, candidates};
pub use cap::{Scale, scale};
pub use compressed::{
    Rows, compress, compressed_product, compressed_product_for, compressed_row, decompress,
    most_bytes,
};
pub use convolution::{Convolve, KeepProduct, convolve, keep_product};
pub use dispatch::{attention, attention_for, product, product_for, round_row};
pub use format::{Format, GROUP, LANES};
pub use gate::{Activation, Gate, gate};
pub use gated_delta::{DeltaState, GatedDelta, gated_delta};
pub use gather::{packed_row, stored_row};
pub use head_gates::{gate_by_sigmoid, split_gates};
pub use isa::Isa;
pub use kv_cache::{KV_BLOCK, KvFormat, UnknownKvFormat};
pub use norm::{Norm, norm, round_to_bf16};
pub use product::{Kernel, Product};
pub use rope::{RotateAppend, rotate_append};
pub use rounded::rounded_bytes;

//! The values of blocked types, each to the bit what the format's own library makes of it: one
//! rounding to f32 after each operation, in its order.

mod iq4;
mod k;
mod legacy;
mod mxfp4;

use half::f16;

use crate::Dtype;

pub(crate) use legacy::{q4_0_integers, q8_0_integers};

/// The values of whole blocks.
///
/// # Panics
///
/// When `dtype` has no blocks.
pub(crate) fn decode(dtype: Dtype, blocks: &[u8], out: &mut [f32]) {
    match dtype {
        Dtype::Q4_0 => each(blocks, out, legacy::q4_0),
        Dtype::Q4_1 => each(blocks, out, legacy::q4_1),
        Dtype::Q5_0 => each(blocks, out, legacy::q5_0),
        Dtype::Q5_1 => each(blocks, out, legacy::q5_1),
        Dtype::Q8_0 => each(blocks, out, legacy::q8_0),
        Dtype::Q2K => each(blocks, out, k::q2),
        Dtype::Q3K => each(blocks, out, k::q3),
        Dtype::Q4K => each(blocks, out, k::q4),
        Dtype::Q5K => each(blocks, out, k::q5),
        Dtype::Q6K => each(blocks, out, k::q6),
        Dtype::Iq4Nl => each(blocks, out, iq4::nl),
        Dtype::Iq4Xs => each(blocks, out, iq4::xs),
        Dtype::Mxfp4 => each(blocks, out, mxfp4::mxfp4),
        Dtype::F32 | Dtype::F16 | Dtype::BF16 | Dtype::Affine4 | Dtype::Zeroed4 => {
            unreachable!("{dtype:?} is no block of a file")
        }
    }
}

fn each<const BYTES: usize, const ELEMENTS: usize>(
    blocks: &[u8],
    out: &mut [f32],
    decode: fn(&[u8; BYTES], &mut [f32; ELEMENTS]),
) {
    let (blocks, out) = (blocks.as_chunks().0, out.as_chunks_mut().0);
    for (block, out) in blocks.iter().zip(out) {
        decode(block, out);
    }
}

/// The half precision number at `at`.
fn half(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

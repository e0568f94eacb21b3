//! Blocks of 32 with one scale, and perhaps one offset, in half precision.
//!
//! Byte `i` of the integers has element `i` in its low half and element `16 + i` in its high half; the
//! fifth bits, where there are five, are those of a little-endian u32.

use half::f16;

use super::half;

/// A block of Q4_0: its integers and their scale.
pub(crate) fn q4_0_integers(block: &[u8; 18]) -> ([i8; 32], f16) {
    let integers = std::array::from_fn(|i| nibble(&block[2..], i) as i8 - 8);
    (integers, f16::from_le_bytes([block[0], block[1]]))
}

/// A block of Q8_0: its integers and their scale.
pub(crate) fn q8_0_integers(block: &[u8; 34]) -> ([i8; 32], f16) {
    let integers = std::array::from_fn(|i| block[2 + i] as i8);
    (integers, f16::from_le_bytes([block[0], block[1]]))
}

pub(super) fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    scaled(q4_0_integers(block), out);
}

pub(super) fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    scaled(q8_0_integers(block), out);
}

pub(super) fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let (scale, offset) = (half(block, 0), half(block, 2));
    for (i, out) in out.iter_mut().enumerate() {
        *out = scale * f32::from(nibble(&block[4..], i)) + offset;
    }
}

pub(super) fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let scale = half(block, 0);
    for (i, out) in out.iter_mut().enumerate() {
        let q = nibble(&block[6..], i) | bit(&block[2..], i) << 4;
        *out = scale * f32::from(q as i8 - 16);
    }
}

pub(super) fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let (scale, offset) = (half(block, 0), half(block, 2));
    for (i, out) in out.iter_mut().enumerate() {
        let q = nibble(&block[8..], i) | bit(&block[4..], i) << 4;
        *out = scale * f32::from(q) + offset;
    }
}

fn scaled((integers, scale): ([i8; 32], f16), out: &mut [f32; 32]) {
    let scale = scale.to_f32();
    for (out, q) in out.iter_mut().zip(integers) {
        *out = scale * f32::from(q);
    }
}

fn nibble(bytes: &[u8], i: usize) -> u8 {
    bytes[i % 16] >> (i / 16 * 4) & 15
}

fn bit(bytes: &[u8], i: usize) -> u8 {
    bytes[i / 8] >> (i % 8) & 1
}

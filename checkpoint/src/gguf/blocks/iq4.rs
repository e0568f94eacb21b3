//! Sixteen levels, times scales.

use super::half;

/// What four bits stand for.
const LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// 18 bytes: scale; levels, element `i` in the low and element `16 + i` in the high half of byte `i`.
pub(super) fn nl(block: &[u8; 18], out: &mut [f32; 32]) {
    levels(half(block, 0), &block[2..], out);
}

/// 136 bytes: scale; the two upper bits, then the four lower ones, of the scales of eight parts, plus 32;
/// levels, 16 bytes a part.
pub(super) fn xs(block: &[u8; 136], out: &mut [f32; 256]) {
    let all = half(block, 0);
    let highs = u16::from_le_bytes([block[2], block[3]]);
    for (part, out) in out.as_chunks_mut().0.iter_mut().enumerate() {
        let low = block[4 + part / 2] >> (part % 2 * 4) & 15;
        let high = (highs >> (2 * part) & 3) as u8;
        let scale = all * f32::from((low | high << 4) as i8 - 32);
        levels(scale, &block[8 + 16 * part..], out);
    }
}

fn levels(scale: f32, bytes: &[u8], out: &mut [f32; 32]) {
    let (low, high) = out.split_at_mut(16);
    for ((low, high), byte) in low.iter_mut().zip(high).zip(bytes) {
        *low = scale * f32::from(LEVELS[usize::from(byte & 15)]);
        *high = scale * f32::from(LEVELS[usize::from(byte >> 4)]);
    }
}

//! Blocks of 256, whose parts of 16 or 32 have small scales of their own, times those of the block.

use super::half;

/// 84 bytes: scales and offsets of 16 parts, four bits each; integers; scale, scale of offsets.
pub(super) fn q2(block: &[u8; 84], out: &mut [f32; 256]) {
    let (scale, offset) = (half(block, 80), half(block, 82));
    for (part, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = scale * f32::from(block[part] & 15);
        let offset = offset * f32::from(block[part] >> 4);
        for (i, out) in out.iter_mut().enumerate() {
            *out = scale * f32::from(two_bits(&block[16..80], 16 * part + i)) - offset;
        }
    }
}

/// 110 bytes: third bits of the integers; their two others; scales of 16 parts, six bits each, plus
/// 32; scale.
pub(super) fn q3(block: &[u8; 110], out: &mut [f32; 256]) {
    let all = half(block, 108);
    let scales = &block[96..108];
    for (part, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let low = scales[part % 8] >> (part / 8 * 4) & 15;
        let high = scales[8 + part % 4] >> (part / 4 * 2) & 3;
        let scale = all * f32::from((low | high << 4) as i8 - 32);
        for (i, out) in out.iter_mut().enumerate() {
            let at = 16 * part + i;
            let third = block[at % 32] >> (at / 32) & 1;
            let q = (two_bits(&block[32..96], at) | third << 2) as i8 - 4;
            *out = scale * f32::from(q);
        }
    }
}

/// 144 bytes: scale, scale of offsets; scales and offsets of eight parts; integers.
pub(super) fn q4(block: &[u8; 144], out: &mut [f32; 256]) {
    for (part, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, offset) = scale_and_offset(block, part);
        for (i, out) in out.iter_mut().enumerate() {
            *out = scale * f32::from(four_bits(&block[16..], part, i)) - offset;
        }
    }
}

/// 176 bytes: as of [`q4`], with the fifth bits of the integers before their four others.
pub(super) fn q5(block: &[u8; 176], out: &mut [f32; 256]) {
    for (part, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, offset) = scale_and_offset(block, part);
        for (i, out) in out.iter_mut().enumerate() {
            let fifth = block[16 + i] >> part & 1;
            let q = four_bits(&block[48..], part, i) | fifth << 4;
            *out = scale * f32::from(q) - offset;
        }
    }
}

/// 210 bytes: four bits of the integers, plus 32; their two others; scales of 16 parts; scale.
pub(super) fn q6(block: &[u8; 210], out: &mut [f32; 256]) {
    let all = half(block, 208);
    for (part, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let scale = all * f32::from(block[192 + part] as i8);
        for (i, out) in out.iter_mut().enumerate() {
            let at = 16 * part + i;
            // 128 elements are 64 bytes: the first half of them in the low halves.
            let low = block[at / 128 * 64 + at % 64] >> (at % 128 / 64 * 4) & 15;
            let high = two_bits(&block[128..192], at);
            *out = scale * f32::from((low | high << 4) as i8 - 32);
        }
    }
}

/// Element `at` of integers of two bits: 32 bytes have 128, those 32 apart in the same byte.
fn two_bits(bytes: &[u8], at: usize) -> u8 {
    bytes[at / 128 * 32 + at % 32] >> (at % 128 / 32 * 2) & 3
}

/// Element `i` of part `part` of integers of four bits: 32 bytes have two parts.
fn four_bits(bytes: &[u8], part: usize, i: usize) -> u8 {
    bytes[part / 2 * 32 + i] >> (part % 2 * 4) & 15
}

/// Of part `part` of a block that begins with both factors and 12 bytes of pairs of six bits.
fn scale_and_offset(block: &[u8], part: usize) -> (f32, f32) {
    let bytes = &block[4..16];
    let (scale, offset) = if part < 4 {
        (bytes[part] & 63, bytes[4 + part] & 63)
    } else {
        let (low, i) = (bytes[4 + part], part - 4);
        (low & 15 | bytes[i] >> 6 << 4, low >> 4 | bytes[4 + i] >> 6 << 4)
    };
    (half(block, 0) * f32::from(scale), half(block, 2) * f32::from(offset))
}

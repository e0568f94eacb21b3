//! Floats of four bits (sign, two of exponent, one of mantissa) times a power of two: OCP's
//! Microscaling Formats, 5.2.

/// Twice what four bits stand for.
const DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// 17 bytes: exponent; element `i` in the low and element `16 + i` in the high half of byte `i`.
pub(super) fn mxfp4(block: &[u8; 17], out: &mut [f32; 32]) {
    let scale = half_power(block[0]);
    let (low, high) = out.split_at_mut(16);
    for ((low, high), byte) in low.iter_mut().zip(high).zip(&block[1..]) {
        *low = scale * f32::from(DOUBLED[usize::from(byte & 15)]);
        *high = scale * f32::from(DOUBLED[usize::from(byte >> 4)]);
    }
}

/// `2^(exponent - 128)`, of which the two smallest are subnormal.
fn half_power(exponent: u8) -> f32 {
    f32::from_bits(match exponent {
        0 | 1 => 0x0020_0000 << exponent,
        _ => u32::from(exponent - 1) << 23,
    })
}

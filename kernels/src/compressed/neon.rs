use std::arch::aarch64::*;

use super::super::neon::{Neon, four, load_words};
use super::decode::Decode;

/// Pairs of eight lanes.
#[inline(always)]
unsafe fn eight_pairs(
    mantissas: *const u8,
    codes: uint8x16_t,
    i: usize,
    exponents: uint8x16_t,
) -> [int32x4_t; 2] {
    // SAFETY: the caller's promise.
    unsafe {
        let codes = match i % 2 {
            0 => vandq_u8(codes, vdupq_n_u8(0xf)),
            _ => vshrq_n_u8::<4>(codes),
        };
        let exponents = vqtbl1q_u8(exponents, codes);
        let mantissas = vld1q_u8(mantissas);
        // The sign stays before seven bits of the exponent, the mantissa behind its last.
        let upper = vsriq_n_u8::<1>(mantissas, exponents);
        let lower = vsliq_n_u8::<7>(mantissas, exponents);
        let (first, second) = (vzip1q_u8(lower, upper), vzip2q_u8(lower, upper));
        [vreinterpretq_s32_u8(first), vreinterpretq_s32_u8(second)]
    }
}

impl<const MORE: u8> Decode for Neon<MORE> {
    type Exponents = uint8x16_t;
    /// Of eight lanes a byte for each column, with the codes of two pairs: the first pairs' of both halves
    /// of the lanes, then the last pairs'.
    type Codes = [uint8x16_t; 4];

    #[inline(always)]
    unsafe fn exponents(from: *const u8) -> uint8x16_t {
        // SAFETY: the caller's promise.
        unsafe { vld1q_u8(from) }
    }

    #[inline(always)]
    unsafe fn codes(from: *const u8) -> Self::Codes {
        // SAFETY: the caller's promise.
        unsafe {
            let words = load_words(from);
            let [a, b, c, d] = four!(I => vreinterpretq_u8_s32(words[I]));
            [vuzp1q_u8(a, b), vuzp1q_u8(c, d), vuzp2q_u8(a, b), vuzp2q_u8(c, d)]
        }
    }

    #[inline(always)]
    unsafe fn pair(
        mantissas: *const u8,
        codes: Self::Codes,
        i: usize,
        exponents: uint8x16_t,
    ) -> Self::Integers {
        // SAFETY: the caller's promise.
        unsafe {
            let [first, second] = [codes[i / 2 * 2], codes[i / 2 * 2 + 1]];
            let [a, b] = eight_pairs(mantissas, first, i, exponents);
            let [c, d] = eight_pairs(mantissas.add(16), second, i, exponents);
            [a, b, c, d]
        }
    }

    #[inline(always)]
    unsafe fn column(pair: Self::Integers, lows: Option<Self::Integers>, i: usize) -> Self {
        // SAFETY: the caller's promise.
        let bits = unsafe {
            match (i, lows) {
                (0, None) => four!(I => vshlq_n_s32::<16>(pair[I])),
                (_, None) => four!(I => vandq_s32(pair[I], vdupq_n_s32(!0xffff))),
                // The other column's half is written over, or shifted out.
                (0, Some(lows)) => four!(I => vsliq_n_s32::<16>(lows[I], pair[I])),
                (_, Some(lows)) => four!(I => vsriq_n_s32::<16>(pair[I], lows[I])),
            }
        };
        // SAFETY: the caller's promise.
        Self(unsafe { four!(I => vreinterpretq_f32_s32(bits[I])) })
    }
}

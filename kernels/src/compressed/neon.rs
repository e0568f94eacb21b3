use std::arch::aarch64::*;

use super::super::neon::{Neon, load_words};
use super::decode::Decode;

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
            let [a, b, c, d] = load_words(from).map(|it| vreinterpretq_u8_s32(it));
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
        let eight = |half: usize| {
            // SAFETY: the caller's promise.
            unsafe {
                let codes = codes[i / 2 * 2 + half];
                let codes = match i % 2 {
                    0 => vandq_u8(codes, vdupq_n_u8(0xf)),
                    _ => vshrq_n_u8::<4>(codes),
                };
                let exponents = vqtbl1q_u8(exponents, codes);
                let mantissas = vld1q_u8(mantissas.add(half * 16));
                // The sign stays before seven bits of the exponent, the mantissa behind its last.
                let upper = vsriq_n_u8::<1>(mantissas, exponents);
                let lower = vsliq_n_u8::<7>(mantissas, exponents);
                [vzip1q_u8(lower, upper), vzip2q_u8(lower, upper)]
                    .map(|it| vreinterpretq_s32_u8(it))
            }
        };
        let ([a, b], [c, d]) = (eight(0), eight(1));
        [a, b, c, d]
    }

    #[inline(always)]
    unsafe fn column(pair: Self::Integers, lows: Option<Self::Integers>, i: usize) -> Self {
        let four = |lane: usize| {
            let pair = pair[lane];
            // SAFETY: the caller's promise.
            let bits = unsafe {
                match (i, lows.map(|lows| lows[lane])) {
                    (0, None) => vshlq_n_s32::<16>(pair),
                    (_, None) => vandq_s32(pair, vdupq_n_s32(!0xffff)),
                    // The other column's half is shifted out, or written over.
                    (0, Some(lows)) => vsliq_n_s32::<16>(lows, pair),
                    (_, Some(lows)) => vsriq_n_s32::<16>(pair, lows),
                }
            };
            // SAFETY: the caller's promise.
            unsafe { vreinterpretq_f32_s32(bits) }
        };
        Self(std::array::from_fn(four))
    }
}

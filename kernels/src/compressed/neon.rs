use std::arch::aarch64::*;

use super::super::neon::{Neon, four};
use super::block::{CODES, LOWERS};
use super::decode::Decode;

impl<const MORE: u8> Decode for Neon<MORE> {
    type Uppers = uint8x16_t;

    #[inline(always)]
    unsafe fn uppers(from: *const u8) -> uint8x16_t {
        // SAFETY: the caller's promise.
        unsafe { vld1q_u8(from) }
    }

    #[inline(always)]
    unsafe fn pairs(group: *const u8, i: usize, uppers: uint8x16_t) -> [Self::Integers; 2] {
        // SAFETY: the caller's promise.
        let words = unsafe {
            four!(I => {
                let codes = vld1q_u8(group.add(LOWERS + I * 16));
                let codes = match i {
                    0 => vandq_u8(codes, vdupq_n_u8(0xf)),
                    _ => vshrq_n_u8::<4>(codes),
                };
                let uppers = vqtbl1q_u8(uppers, codes);
                let lowers = vld1q_u8(group.add(i * CODES + I * 16));
                [vzip1q_u8(lowers, uppers), vzip2q_u8(lowers, uppers)]
            })
        };
        // SAFETY: the caller's promise.
        unsafe {
            [
                four!(I => vreinterpretq_s32_u8(words[I][0])),
                four!(I => vreinterpretq_s32_u8(words[I][1])),
            ]
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

//! bfloat16 weights and activations with FEAT_BF16: two columns to a lane.

use std::arch::aarch64::*;
use std::arch::asm;

use super::floats::Float;
use super::neon::{MATRICES, Neon, four};

/// Pairs of columns; the first of a pair is in the low half of a word.
#[derive(Clone, Copy)]
pub(super) struct Bf16Pairs;

impl Float<Neon<MATRICES>> for Bf16Pairs {
    const COLUMNS: usize = 2;
    const BYTES: usize = 4;
    type Weights = [int32x4_t; 4];

    #[inline(always)]
    unsafe fn load(at: *const u8) -> [int32x4_t; 4] {
        // SAFETY: the caller's promise.
        unsafe {
            let [a, b, c, d] = four!(I => vld1q_u16(at.cast::<u16>().add(8 * I)));
            let pairs = [vzip1q_u16(a, c), vzip2q_u16(a, c), vzip1q_u16(b, d), vzip2q_u16(b, d)];
            four!(I => vreinterpretq_s32_u16(pairs[I]))
        }
    }

    #[inline(always)]
    unsafe fn add_products(
        sums: Neon<MATRICES>,
        weights: [int32x4_t; 4],
        word: u32,
    ) -> Neon<MATRICES> {
        let x = f32::from_bits(word);
        // SAFETY: the caller's promise.
        Neon(unsafe { four!(I => add_products(sums.0[I], weights[I], x)) })
    }
}

/// As `vbfdotq_lane_f32`, which is not stable.
#[inline(always)]
unsafe fn add_products(mut sums: float32x4_t, pairs: int32x4_t, x: f32) -> float32x4_t {
    // SAFETY: one instruction on registers, which the caller's CPU has.
    unsafe {
        asm!(
            "bfdot {0:v}.4s, {1:v}.8h, {2:v}.2h[0]",
            inout(vreg) sums, in(vreg) pairs, in(vreg) x,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}

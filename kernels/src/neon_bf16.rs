//! bfloat16 weights and activations with FEAT_BF16: two columns to a lane.
//!
//! BFDOT adds the products of a pair of columns to a sum. BFMMLA does that with one pair and then with another,
//! for two rows and two lanes, so that a sum has the same bits.

use std::arch::aarch64::*;
use std::arch::asm;

use super::floats::Float;
use super::neon::{MATRICES, Neon, four, halves, in_turn};

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

    /// Five meet blocks as they are stored in fewer instructions. Tiles have four, two by two, whose sums leave
    /// half of the registers to weights and activations.
    const ROWS: usize = 5;

    /// Both words of two lanes to a register.
    #[inline(always)]
    unsafe fn half([first, second]: [[int32x4_t; 4]; 2], i: usize) -> [int32x4_t; 4] {
        let [a, b] = in_turn(first[2 * i], second[2 * i]);
        let [c, d] = in_turn(first[2 * i + 1], second[2 * i + 1]);
        [a, b, c, d]
    }

    /// Rows two by two, the last of an odd number by itself; without pins, as there are registers enough.
    #[inline(always)]
    unsafe fn add_half<const R: usize, const M: usize>(
        sums: &mut [[Neon<MATRICES>; M]; R],
        weights: [[int32x4_t; 4]; R],
        i: usize,
        x: *const u32,
        stride: usize,
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            for (sums, [a, b, c, d]) in sums.iter_mut().zip(weights) {
                let (twos, last) = sums.as_chunks_mut::<2>();
                for (two, [one, other]) in twos.iter_mut().enumerate() {
                    let x = x.add(2 * two * stride);
                    let rows = vcombine_s32(vld1_s32(x.cast()), vld1_s32(x.add(stride).cast()));
                    one.0[2 * i] = add_matrix(one.0[2 * i], rows, a);
                    other.0[2 * i] = add_matrix(other.0[2 * i], rows, b);
                    one.0[2 * i + 1] = add_matrix(one.0[2 * i + 1], rows, c);
                    other.0[2 * i + 1] = add_matrix(other.0[2 * i + 1], rows, d);
                }
                if let [last] = last {
                    let x = x.add((M - 1) * stride);
                    let [first, second] = [0, 1].map(|i| f32::from_bits(x.add(i).read_unaligned()));
                    let [low, high] = [last.0[2 * i], last.0[2 * i + 1]];
                    let low = add_products(low, vuzp1q_s32(a, b), first);
                    let high = add_products(high, vuzp1q_s32(c, d), first);
                    last.0[2 * i] = add_products(low, vuzp2q_s32(a, b), second);
                    last.0[2 * i + 1] = add_products(high, vuzp2q_s32(c, d), second);
                }
            }
        }
    }

    /// Two lanes of a row and of the next one to a register.
    #[inline(always)]
    unsafe fn turn<const M: usize>(sums: &mut [Neon<MATRICES>; M]) {
        for [one, other] in sums.as_chunks_mut::<2>().0 {
            // SAFETY: every CPU of this architecture has NEON.
            let turned = unsafe {
                four!(I => {
                    let [a, b] = [one.0[I], other.0[I]].map(|it| vreinterpretq_s32_f32(it));
                    halves(a, b).map(|it| vreinterpretq_f32_s32(it))
                })
            };
            *one = Neon(four!(I => turned[I][0]));
            *other = Neon(four!(I => turned[I][1]));
        }
    }
}

/// Two rows of two pairs times two lanes of two, added to two sums of each row: `vbfmmlaq_f32`, which is not
/// stable.
#[inline(always)]
unsafe fn add_matrix(mut sums: float32x4_t, rows: int32x4_t, lanes: int32x4_t) -> float32x4_t {
    // SAFETY: one instruction on registers, which the caller's CPU has.
    unsafe {
        asm!(
            "bfmmla {0:v}.4s, {1:v}.8h, {2:v}.8h",
            inout(vreg) sums, in(vreg) rows, in(vreg) lanes,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
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

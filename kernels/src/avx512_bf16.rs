//! bfloat16 weights and activations with AVX-512 BF16: two columns to an instruction.

use std::arch::asm;
use std::arch::x86_64::*;

use super::avx512::{Avx512, pairs, vnni_detected};
use super::floats::Float;
use super::vector::Vector;

pub(super) fn detected() -> bool {
    vnni_detected() && is_x86_feature_detected!("avx512bf16")
}

/// Pairs of columns; the first of a pair is in the low half of a word.
#[derive(Clone, Copy)]
pub(super) struct Bf16Pairs;

impl Float<Avx512<true>> for Bf16Pairs {
    const COLUMNS: usize = 2;
    const BYTES: usize = 4;
    type Weights = __m512i;

    #[inline(always)]
    unsafe fn load(at: *const u8) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { pairs(_mm512_loadu_si512(at.cast())) }
    }

    #[inline(always)]
    unsafe fn add_products(sums: Avx512<true>, weights: __m512i, word: u32) -> Avx512<true> {
        // SAFETY: the caller's promise.
        unsafe {
            let x = Avx512::<true>::splat_i32(word as i32);
            Avx512(add_products(sums.0, weights, x))
        }
    }
}

/// As `_mm512_dpbf16_ps`, whose feature would have to be enabled where tiles are compiled for all
/// of AVX-512.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn add_products(mut sums: __m512, pairs: __m512i, x: __m512i) -> __m512 {
    // SAFETY: one instruction on registers, which the caller's CPU has.
    unsafe {
        asm!(
            "vdpbf16ps {0}, {1}, {2}", inout(zmm_reg) sums, in(zmm_reg) pairs, in(zmm_reg) x,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}

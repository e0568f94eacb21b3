//! Sixteen f32 as one register of AVX-512.

use std::arch::asm;
use std::arch::x86_64::*;

use super::format::{StoredFormat, Widen};
use super::tile::Tile;
use super::vector::Vector;

#[derive(Clone, Copy)]
pub(super) struct Avx512(__m512);

pub(super) fn detected() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn run<F: StoredFormat, const R: usize, const M: usize>(tile: &Tile) {
    // SAFETY: the caller's promise.
    unsafe { tile.run::<Avx512, F, R, M>() }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn widen<F: StoredFormat>(widen: &Widen) {
    // SAFETY: the caller's promise.
    unsafe { widen.run::<Avx512, F>() }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn pin(mut vector: Avx512) -> Avx512 {
    // SAFETY: there are no instructions.
    unsafe {
        asm!("/* {0} */", inout(zmm_reg) vector.0, options(nostack, preserves_flags));
    }
    vector
}

impl Vector for Avx512 {
    const ROWS: usize = 8;
    const FEW: usize = 24;
    const PANEL_COLUMNS: usize = 192;
    const PANEL_BLOCKS: usize = 2;
    const NIBBLES_IN_PLACE: bool = false;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { _mm512_set1_ps(value) })
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { _mm512_loadu_ps(from) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { _mm512_storeu_ps(to, self.0) }
    }

    #[inline(always)]
    unsafe fn mul(self, by: Self) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { _mm512_mul_ps(self.0, by.0) })
    }

    #[inline(always)]
    unsafe fn mul_add(self, by: Self, plus: Self) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { _mm512_fmadd_ps(self.0, by.0, plus.0) })
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits)))
        }
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const u8) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) })
    }

    #[inline(always)]
    unsafe fn load_i8(from: *const u8) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            let values = _mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()));
            Self(_mm512_cvtepi32_ps(values))
        }
    }

    /// A permutation looks only at the low four bits of each index: no mask, no conversion.
    #[inline(always)]
    unsafe fn nibble(from: *const u8, i: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            let values = _mm512_setr_ps(
                -8.0, -7.0, -6.0, -5.0, -4.0, -3.0, -2.0, -1.0, //
                0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0,
            );
            let words = _mm512_loadu_si512(from.cast());
            let index = _mm512_srlv_epi32(words, _mm512_set1_epi32(4 * i as i32));
            Self(_mm512_permutexvar_ps(index, values))
        }
    }

    #[inline(always)]
    unsafe fn prefetch(at: *const u8) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }

    #[inline(always)]
    unsafe fn pin(self) -> Self {
        // SAFETY: the caller's promise.
        unsafe { pin(self) }
    }

    unsafe fn run<F: StoredFormat>(rows: usize, tile: &Tile) {
        // SAFETY: the caller's promise.
        unsafe {
            match rows {
                1 => run::<F, 4, 1>(tile),
                2 => run::<F, 4, 2>(tile),
                3 => run::<F, 4, 3>(tile),
                4 => run::<F, 2, 4>(tile),
                5 => run::<F, 2, 5>(tile),
                6 => run::<F, 2, 6>(tile),
                7 => run::<F, 2, 7>(tile),
                _ => run::<F, 2, 8>(tile),
            }
        }
    }

    unsafe fn widen<F: StoredFormat>(job: &Widen) {
        // SAFETY: the caller's promise.
        unsafe { widen::<F>(job) }
    }
}

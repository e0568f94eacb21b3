//! Sixteen f32 as two registers of AVX2, with FMA and F16C.

use std::arch::asm;
use std::arch::x86_64::*;

use super::format::{StoredFormat, Widen};
use super::tile::Tile;
use super::vector::Vector;

#[derive(Clone, Copy)]
pub(super) struct Avx2(__m256, __m256);

pub(super) fn detected() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn run<F: StoredFormat, const R: usize, const M: usize>(tile: &Tile) {
    // SAFETY: the caller's promise.
    unsafe { tile.run::<Avx2, F, R, M>() }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn widen<F: StoredFormat>(widen: &Widen) {
    // SAFETY: the caller's promise.
    unsafe { widen.run::<Avx2, F>() }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn pin(mut vector: Avx2) -> Avx2 {
    // SAFETY: there are no instructions.
    unsafe {
        asm!(
            "/* {0} {1} */", inout(ymm_reg) vector.0, inout(ymm_reg) vector.1,
            options(nostack, preserves_flags),
        );
    }
    vector
}

impl Vector for Avx2 {
    const ROWS: usize = 6;
    const FEW: usize = 24;
    const PANEL_COLUMNS: usize = 256;
    const PANEL_BLOCKS: usize = 1;
    const NIBBLES_IN_PLACE: bool = true;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self(_mm256_set1_ps(value), _mm256_set1_ps(value)) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self(_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe {
            _mm256_storeu_ps(to, self.0);
            _mm256_storeu_ps(to.add(8), self.1);
        }
    }

    #[inline(always)]
    unsafe fn mul(self, by: Self) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self(_mm256_mul_ps(self.0, by.0), _mm256_mul_ps(self.1, by.1)) }
    }

    #[inline(always)]
    unsafe fn mul_add(self, by: Self, plus: Self) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            Self(_mm256_fmadd_ps(self.0, by.0, plus.0), _mm256_fmadd_ps(self.1, by.1, plus.1))
        }
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.add(16).cast()));
            Self(
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)),
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)),
            )
        }
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const u8) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            let low = _mm256_cvtph_ps(_mm_loadu_si128(from.cast()));
            Self(low, _mm256_cvtph_ps(_mm_loadu_si128(from.add(16).cast())))
        }
    }

    #[inline(always)]
    unsafe fn load_i8(from: *const u8) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            let low = _mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast()));
            let high = _mm256_cvtepi8_epi32(_mm_loadl_epi64(from.add(8).cast()));
            Self(_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high))
        }
    }

    #[inline(always)]
    unsafe fn nibble(from: *const u8, i: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            let low = _mm256_loadu_si256(from.cast());
            let high = _mm256_loadu_si256(from.add(32).cast());
            let (low, high) = if i == 7 {
                (_mm256_srli_epi32::<28>(low), _mm256_srli_epi32::<28>(high))
            } else {
                let mask = _mm256_set1_epi32(15 << (4 * i));
                (_mm256_and_si256(low, mask), _mm256_and_si256(high, mask))
            };
            Self(_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high))
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
                2 => run::<F, 2, 2>(tile),
                3 => run::<F, 2, 3>(tile),
                4 => run::<F, 1, 4>(tile),
                5 => run::<F, 1, 5>(tile),
                _ => run::<F, 1, 6>(tile),
            }
        }
    }

    unsafe fn widen<F: StoredFormat>(job: &Widen) {
        // SAFETY: the caller's promise.
        unsafe { widen::<F>(job) }
    }
}

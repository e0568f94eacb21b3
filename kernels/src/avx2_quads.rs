//! Four bytes to a lane with AVX2, and with AVX-VNNI.

use std::arch::x86_64::*;

use super::avx2::Avx2;
use super::quads::QuadVector;

/// Sums of eight lanes: two of 16 bits each, which 16 products of 15 and -128 do not fill, or one
/// of 32 with `VNNI`.
#[inline(always)]
unsafe fn add_bytes<const VNNI: bool>(sums: __m256i, quads: __m256i, bytes: __m256i) -> __m256i {
    // SAFETY: the caller's promise; with `VNNI` the CPU has it.
    unsafe {
        if VNNI {
            _mm256_dpbusd_avx_epi32(sums, quads, bytes)
        } else {
            _mm256_add_epi16(sums, _mm256_maddubs_epi16(quads, bytes))
        }
    }
}

#[inline(always)]
unsafe fn total<const VNNI: bool>(start: __m256i, high: __m256i, low: __m256i) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe {
        let (high, low) = if VNNI {
            (_mm256_slli_epi32::<8>(high), low)
        } else {
            (
                _mm256_madd_epi16(high, _mm256_set1_epi16(256)),
                _mm256_madd_epi16(low, _mm256_set1_epi16(1)),
            )
        };
        _mm256_add_epi32(_mm256_add_epi32(start, low), high)
    }
}

impl<const VNNI: bool> QuadVector for Avx2<VNNI> {
    const ALL_BLOCKS: bool = false;
    // Sums of 16 bits hold no more.
    const MOST: i32 = if VNNI { 255 } else { 15 };

    #[inline(always)]
    unsafe fn above_i8(from: *const u8) -> Self::Integers {
        // SAFETY: the caller's promise.
        unsafe {
            let above = |from: *const u8| {
                _mm256_xor_si256(_mm256_loadu_si256(from.cast()), _mm256_set1_epi8(-128))
            };
            (above(from), above(from.add(32)))
        }
    }

    #[inline(always)]
    unsafe fn add_bytes(
        sums: Self::Integers,
        quads: Self::Integers,
        bytes: Self::Integers,
    ) -> Self::Integers {
        // SAFETY: the caller's promise.
        unsafe {
            (
                add_bytes::<VNNI>(sums.0, quads.0, bytes.0),
                add_bytes::<VNNI>(sums.1, quads.1, bytes.1),
            )
        }
    }

    #[inline(always)]
    unsafe fn total(
        start: Self::Integers,
        high: Self::Integers,
        low: Self::Integers,
    ) -> Self::Integers {
        // SAFETY: the caller's promise.
        unsafe { (total::<VNNI>(start.0, high.0, low.0), total::<VNNI>(start.1, high.1, low.1)) }
    }
}

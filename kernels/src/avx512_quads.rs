//! Four bytes to a lane with AVX-512 VNNI.

use std::arch::x86_64::*;

use super::avx512::Avx512;
use super::quads::QuadVector;

impl QuadVector for Avx512<true> {
    const ALL_BLOCKS: bool = true;
    const MOST: i32 = 255;

    #[inline(always)]
    unsafe fn above_i8(from: *const u8) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { _mm512_xor_si512(_mm512_loadu_si512(from.cast()), _mm512_set1_epi8(-128)) }
    }

    #[inline(always)]
    unsafe fn add_bytes(sums: __m512i, quads: __m512i, bytes: __m512i) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { _mm512_dpbusd_epi32(sums, quads, bytes) }
    }

    #[inline(always)]
    unsafe fn total(start: __m512i, high: __m512i, low: __m512i) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { _mm512_add_epi32(_mm512_add_epi32(start, low), _mm512_slli_epi32::<8>(high)) }
    }
}

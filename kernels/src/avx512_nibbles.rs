//! Four bytes to a lane with AVX-512 VNNI.

use std::arch::x86_64::*;

use super::avx512::Avx512;
use super::nibbles::Bytes;

impl Bytes for Avx512<true> {
    const ALL_BLOCKS: bool = true;

    #[inline(always)]
    unsafe fn add_bytes(sums: __m512i, nibbles: __m512i, bytes: __m512i) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { _mm512_dpbusd_epi32(sums, nibbles, bytes) }
    }

    #[inline(always)]
    unsafe fn total(start: __m512i, high: __m512i, low: __m512i) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { _mm512_add_epi32(_mm512_add_epi32(start, low), _mm512_slli_epi32::<8>(high)) }
    }
}

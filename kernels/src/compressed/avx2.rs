use std::arch::x86_64::*;

use super::super::avx2::Avx2;
use super::super::vector::Vector;
use super::decode::Decode;

#[inline]
#[target_feature(enable = "avx2")]
fn eight_pairs(mantissas: __m128i, codes: __m256i, i: usize, exponents: __m256i) -> __m256i {
    let codes = match i {
        0 => codes,
        1 => _mm256_srli_epi16::<4>(codes),
        2 => _mm256_srli_epi16::<8>(codes),
        _ => _mm256_srli_epi16::<12>(codes),
    };
    // The upper byte of each word looks up code 0, which is exponent 0.
    let codes = _mm256_and_si256(codes, _mm256_set1_epi16(0xf));
    let exponents = _mm256_slli_epi16::<7>(_mm256_shuffle_epi8(exponents, codes));
    // The sign goes to the highest bit, and into the exponent's, where it is masked.
    let kept = _mm256_set1_epi16(0x807fu16 as i16);
    _mm256_or_si256(_mm256_and_si256(_mm256_cvtepi8_epi16(mantissas), kept), exponents)
}

#[inline]
#[target_feature(enable = "avx2")]
fn eight_lanes(pair: __m256i, low: __m256i, i: usize) -> __m256 {
    let bits = match i {
        0 => _mm256_blend_epi16::<0xaa>(low, _mm256_slli_epi32::<16>(pair)),
        _ => _mm256_blend_epi16::<0xaa>(_mm256_srli_epi32::<16>(low), pair),
    };
    _mm256_castsi256_ps(bits)
}

impl Decode for Avx2 {
    /// Sixteen bytes, twice.
    type Exponents = __m256i;
    type Codes = (__m256i, __m256i);

    #[inline(always)]
    unsafe fn exponents(from: *const u8) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(from.cast())) }
    }

    #[inline(always)]
    unsafe fn codes(from: *const u8) -> Self::Codes {
        // SAFETY: the caller's promise.
        unsafe { Self::load_i32(from) }
    }

    #[inline(always)]
    unsafe fn pair(
        mantissas: *const u8,
        codes: Self::Codes,
        i: usize,
        exponents: __m256i,
    ) -> Self::Integers {
        // SAFETY: the caller's promise.
        unsafe {
            let first = _mm_loadu_si128(mantissas.cast());
            let second = _mm_loadu_si128(mantissas.add(16).cast());
            (eight_pairs(first, codes.0, i, exponents), eight_pairs(second, codes.1, i, exponents))
        }
    }

    #[inline(always)]
    unsafe fn column(pair: Self::Integers, lows: Option<Self::Integers>, i: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            let zero = _mm256_setzero_si256();
            let lows = lows.unwrap_or((zero, zero));
            Self(eight_lanes(pair.0, lows.0, i), eight_lanes(pair.1, lows.1, i))
        }
    }
}

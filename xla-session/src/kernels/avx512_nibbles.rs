//! Int4 beside one row with AVX-512 VNNI: bytes instead of pairs.
//!
//! One row has the speed of memory only if little is done with each weight. Activations of 16 bits
//! are `256 * high + low`, both of them signed bytes, and `vpdpbusd` multiplies four bytes of each
//! lane: a mask takes four nibbles of every word, where pairs take two. The sums are the same
//! integers.

use std::arch::x86_64::*;

use super::avx512::Avx512;
use super::integers::{Group, PAIRS, Rounding, WORD};
use super::tile::AHEAD;
use super::vector::Vector;
use crate::quantise::GROUP;

/// [`Int4`](super::integers::Int4) in bytes.
pub(super) struct Nibbles;

impl Rounding for Nibbles {
    const OFFSET: i32 = 8;

    /// Of each eight columns four words: the high bytes of the even ones and of the odd ones, and
    /// their low bytes.
    #[inline(always)]
    unsafe fn arranged(integers: &[u32; GROUP]) -> [u32; PAIRS] {
        const ORDER: [i8; 16] = [1, 5, 9, 13, 3, 7, 11, 15, 0, 4, 8, 12, 2, 6, 10, 14];
        let mut words = [0; PAIRS];
        // SAFETY: the caller's promise; the reads and the write are as long as the arrays.
        unsafe {
            let first = _mm512_loadu_si512(integers.as_ptr().cast());
            let second = _mm512_loadu_si512(integers.as_ptr().add(16).cast());
            let (first, second) = (_mm512_cvtepi32_epi16(first), _mm512_cvtepi32_epi16(second));
            let x = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(first), second);
            // A low byte counts as negative from 128 on: then the high byte is one more.
            let nearest = _mm512_add_epi16(x, _mm512_set1_epi16(128));
            let bytes = _mm512_mask_mov_epi8(x, 0xaaaa_aaaa_aaaa_aaaa, nearest);
            let order = _mm512_broadcast_i32x4(_mm_loadu_si128(ORDER.as_ptr().cast()));
            let bytes = _mm512_shuffle_epi8(bytes, order);
            _mm512_storeu_si512(words.as_mut_ptr().cast(), bytes);
        }
        words
    }
}

impl Group<Avx512<true>> for Nibbles {
    const BYTES: usize = 4 * WORD;

    #[inline(always)]
    unsafe fn add<const R: usize, const M: usize>(
        sums: &mut [[__m512i; M]; R],
        weights: *const u8,
        apart: usize,
        x: *const u32,
        stride: usize,
    ) {
        type V = Avx512<true>;
        // SAFETY: the caller's promise; a prefetch never faults.
        unsafe {
            let mut high = [[_mm512_setzero_si512(); M]; R];
            unroll!(W, {
                let mut nibbles = [[_mm512_setzero_si512(); 2]; R];
                for (r, nibbles) in nibbles.iter_mut().enumerate() {
                    let word = weights.wrapping_add(r * apart + W * WORD);
                    V::prefetch(word.wrapping_add(AHEAD));
                    *nibbles = [0, 4].map(|shift| V::bits(word, shift, 0x0f0f_0f0f));
                }
                for m in 0..M {
                    let x = x.add(m * stride + 4 * W).cast::<i32>();
                    let x: [_; 4] = std::array::from_fn(|i| V::splat_i32(x.add(i).read()));
                    for r in 0..R {
                        let [even, odd] = nibbles[r];
                        high[r][m] = _mm512_dpbusd_epi32(high[r][m], even, x[0]);
                        high[r][m] = _mm512_dpbusd_epi32(high[r][m], odd, x[1]);
                        sums[r][m] = _mm512_dpbusd_epi32(sums[r][m], even, x[2]);
                        sums[r][m] = _mm512_dpbusd_epi32(sums[r][m], odd, x[3]);
                        high[r][m] = V::pin_i32(high[r][m]);
                        sums[r][m] = V::pin_i32(sums[r][m]);
                    }
                }
            }, 0 1 2 3);
            for r in 0..R {
                for m in 0..M {
                    let high = _mm512_slli_epi32::<8>(high[r][m]);
                    sums[r][m] = _mm512_add_epi32(sums[r][m], high);
                }
            }
        }
    }
}

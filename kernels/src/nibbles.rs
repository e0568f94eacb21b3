//! Integers of four bits beside one row: bytes instead of pairs.
//!
//! One row has the speed of memory only if little is done with each weight. Activations of 16 bits
//! are `256 * high + low`, both of them signed bytes, and there are instructions that multiply four
//! bytes of each lane: a mask takes four nibbles of every word, where pairs take two. The sums are
//! the same integers.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::integers::{Bits, Group, Integer, PAIRS, Rounding, WORD};
use super::scales::Scales;
use super::tile::{AHEAD, STEP};
use super::vector::Vector;
use crate::format::GROUP;

/// Four [`Bits`] as bytes, for which AVX2 is enough.
pub(super) struct Nibbles;

/// [`Nibbles`] with scales.
pub(super) struct GroupedNibbles<S>(PhantomData<S>);

/// A vector whose lanes are four bytes too. Its methods are `#[inline(always)]`.
pub(super) trait Bytes: Vector {
    /// Whether registers hold the sums of all blocks of a tile of one row, high and low; else they
    /// hold those of two.
    const ALL_BLOCKS: bool;

    /// Adds to each lane's sum, which is 0 at first, four products: of `nibbles`, in 0..16, and of
    /// signed `bytes`. There are at most 32 products to a sum.
    ///
    /// # Safety
    ///
    /// As for [`Vector`].
    unsafe fn add_bytes(
        sums: Self::Integers,
        nibbles: Self::Integers,
        bytes: Self::Integers,
    ) -> Self::Integers;

    /// `start + 256 * high + low` of each lane, `high` and `low` being sums of products.
    ///
    /// # Safety
    ///
    /// As for [`Vector`].
    unsafe fn total(
        start: Self::Integers,
        high: Self::Integers,
        low: Self::Integers,
    ) -> Self::Integers;
}

impl Rounding for Nibbles {
    /// Of each eight columns four words: the high bytes of the even ones and of the odd ones, and
    /// their low bytes.
    #[inline(always)]
    unsafe fn arranged(integers: &[u32; GROUP]) -> [u32; PAIRS] {
        /// Of four columns, in halves of those words.
        const ORDER: [i8; 16] = [1, 9, 5, 13, 0, 8, 4, 12, -1, -1, -1, -1, -1, -1, -1, -1];
        let mut words = [0; PAIRS];
        // SAFETY: the caller's promise; the reads and the writes are as long as the arrays.
        unsafe {
            let order = _mm_loadu_si128(ORDER.as_ptr().cast());
            let order = _mm256_broadcastsi128_si256(order);
            let half = _mm256_set1_epi32(128);
            let words = words.as_chunks_mut::<4>().0;
            for (words, x) in words.iter_mut().zip(integers.as_chunks::<STEP>().0) {
                let x = _mm256_loadu_si256(x.as_ptr().cast());
                // A low byte counts as negative from 128 on: then the high byte is one more.
                let bytes = _mm256_xor_si256(_mm256_add_epi32(x, half), half);
                let bytes = _mm256_shuffle_epi8(bytes, order);
                let (first, second) =
                    (_mm256_castsi256_si128(bytes), _mm256_extracti128_si256::<1>(bytes));
                let bytes = _mm_unpacklo_epi16(first, second);
                _mm_storeu_si128(words.as_mut_ptr().cast(), bytes);
            }
        }
        words
    }
}

impl<V: Bytes, S: Scales> Group<V> for GroupedNibbles<S> {
    const BYTES: usize = Bits::<4>::GROUP_BYTES;
    const OFFSET: i32 = if S::MINIMA { 0 } else { Bits::<4>::MIDDLE };
    type Scales = S;

    /// All of the group: halves have no scales of their own.
    #[inline(always)]
    unsafe fn add<const R: usize, const M: usize, const PART: usize>(
        sums: &mut [[V::Integers; M]; R],
        weights: *const u8,
        apart: usize,
        x: *const u32,
        stride: usize,
    ) {
        const { assert!(S::PARTS == 1) };
        if V::ALL_BLOCKS {
            // SAFETY: the caller's promise.
            return unsafe { add::<V, R, M>(sums, weights, apart, x, stride) };
        }
        let (pairs, last) = sums.as_chunks_mut::<2>();
        for (i, sums) in pairs.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { add::<V, 2, M>(sums, weights.add(2 * i * apart), apart, x, stride) };
        }
        for sums in last {
            let sums = std::array::from_mut(sums);
            // SAFETY: the caller's promise.
            unsafe { add::<V, 1, M>(sums, weights.add((R - 1) * apart), apart, x, stride) };
        }
    }
}

/// As [`Group::add`].
#[inline(always)]
unsafe fn add<V: Bytes, const R: usize, const M: usize>(
    sums: &mut [[V::Integers; M]; R],
    weights: *const u8,
    apart: usize,
    x: *const u32,
    stride: usize,
) {
    // SAFETY: the caller's promise; a prefetch never faults.
    unsafe {
        let mut high = [[V::splat_i32(0); M]; R];
        let mut low = high;
        unroll!(W, {
            let mut nibbles = [[V::splat_i32(0); 2]; R];
            for (r, nibbles) in nibbles.iter_mut().enumerate() {
                let word = weights.wrapping_add(r * apart + W * WORD);
                V::prefetch(word.wrapping_add(AHEAD));
                *nibbles = [V::bits(word, 0, 0x0f0f_0f0f), V::bits(word, 4, 0x0f0f_0f0f)];
            }
            for m in 0..M {
                let x = x.add(m * stride + 4 * W).cast::<i32>();
                let x: [_; 4] = std::array::from_fn(|i| V::splat_i32(x.add(i).read()));
                for r in 0..R {
                    let [even, odd] = nibbles[r];
                    high[r][m] = V::add_bytes(high[r][m], even, x[0]);
                    high[r][m] = V::add_bytes(high[r][m], odd, x[1]);
                    low[r][m] = V::add_bytes(low[r][m], even, x[2]);
                    low[r][m] = V::add_bytes(low[r][m], odd, x[3]);
                    high[r][m] = V::pin_i32(high[r][m]);
                    low[r][m] = V::pin_i32(low[r][m]);
                }
            }
        }, 0 1 2 3);
        for r in 0..R {
            for m in 0..M {
                sums[r][m] = V::total(sums[r][m], high[r][m], low[r][m]);
            }
        }
    }
}

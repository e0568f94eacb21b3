//! Integers of four and of eight bits beside bytes instead of pairs: there are instructions that multiply four bytes of
//! each lane, and a mask takes four nibbles of every word, where pairs take two.
//!
//! Activations of 8 bits have half the products so. Those of 16 are `256 * high + low`, both of them signed bytes,
//! which is for one row: it has the speed of memory only if little is done with each weight. The sums are the same
//! integers.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::integers::{Bits, Group, Integer, LINE, PAIRS, Rounding, WORD, bits};
use super::scales::Scales;
use super::tile::{AHEAD, STEP};
use super::vector::Vector;
use crate::format::GROUP;

/// Integers that lie as quads: four columns of a lane in four bytes.
pub(super) trait Quad: Integer {
    /// What stands for zero in quads, where weights have no minima: none of their bytes is negative.
    const ABOVE: i32;
    /// The largest of their bytes.
    const MOST: i32;

    /// Of columns `8 j` to `8 j + 7` the even ones, quad `2 j`, or the odd ones, the quad behind it; `i` is a constant
    /// after inlining.
    ///
    /// # Safety
    ///
    /// As for [`Vector`].
    unsafe fn quad<V: QuadVector>(group: *const u8, i: usize) -> V::Integers;
}

/// Quads of a group.
const QUADS: usize = GROUP / 4;

impl Quad for Bits<4> {
    const ABOVE: i32 = Self::MIDDLE;
    const MOST: i32 = 15;

    #[inline(always)]
    unsafe fn quad<V: QuadVector>(group: *const u8, i: usize) -> V::Integers {
        // SAFETY: the caller's promise.
        unsafe { V::bits(group.add(i / 2 * WORD), 4 * (i % 2) as isize, 0x0f0f_0f0f) }
    }
}

impl Quad for Bits<8> {
    const ABOVE: i32 = 128;
    const MOST: i32 = 255;

    #[inline(always)]
    unsafe fn quad<V: QuadVector>(group: *const u8, i: usize) -> V::Integers {
        // SAFETY: the caller's promise.
        unsafe { V::above_i8(group.add(i * WORD)) }
    }
}

/// Activations of 16 bits in two planes of bytes, for [`Quad`]s, or in one those of 8.
pub(super) struct Quads<const PLANES: usize>;

/// [`Quad`]s with scales, beside so many planes.
pub(super) struct GroupedQuads<I, S, const PLANES: usize>(PhantomData<(I, S)>);

/// A vector whose lanes are four bytes too. Its methods are `#[inline(always)]`.
pub(super) trait QuadVector: Vector {
    /// Whether registers hold the sums of all blocks of a tile, of one row high and low; else they
    /// hold those of two.
    const ALL_BLOCKS: bool;
    /// The largest byte of quads that it multiplies.
    const MOST: i32;

    /// Sixty-four i8, each plus 128.
    ///
    /// # Safety
    ///
    /// As for [`Vector`].
    unsafe fn above_i8(from: *const u8) -> Self::Integers;

    /// Adds to each lane's sum, which is 0 at first, four products: of `quads`, which count from zero, and of
    /// signed `bytes`. There are at most 32 products to a sum.
    ///
    /// # Safety
    ///
    /// As for [`Vector`].
    unsafe fn add_bytes(
        sums: Self::Integers,
        quads: Self::Integers,
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

impl<const PLANES: usize> Rounding for Quads<PLANES> {
    const WORDS: usize = PLANES * PAIRS / 2;

    /// Of each eight columns two words: the bytes of the even ones and of the odd ones; before those of low bytes
    /// two of high ones, if there are.
    #[inline(always)]
    unsafe fn arranged(integers: &[u32; GROUP]) -> [u32; PAIRS] {
        /// Of four columns, in halves of those words.
        const ORDER: [[i8; 8]; 2] = [[0, 8, 4, 12, -1, -1, -1, -1], [1, 9, 5, 13, 0, 8, 4, 12]];
        let mut words = [0; PAIRS];
        // SAFETY: the caller's promise; the reads and the writes are as long as the arrays.
        unsafe {
            let order = _mm_loadl_epi64(ORDER[PLANES - 1].as_ptr().cast());
            let order = _mm256_broadcastsi128_si256(order);
            let half = _mm256_set1_epi32(128);
            let words = words.chunks_exact_mut(2 * PLANES);
            for (words, x) in words.zip(integers.as_chunks::<STEP>().0) {
                let x = _mm256_loadu_si256(x.as_ptr().cast());
                // A low byte counts as negative from 128 on: then the high byte is one more.
                let bytes = _mm256_xor_si256(_mm256_add_epi32(x, half), half);
                let bytes = _mm256_shuffle_epi8(bytes, order);
                let (first, second) =
                    (_mm256_castsi256_si128(bytes), _mm256_extracti128_si256::<1>(bytes));
                let mut all = [0; 4];
                _mm_storeu_si128(all.as_mut_ptr().cast(), _mm_unpacklo_epi16(first, second));
                words.copy_from_slice(&all[..2 * PLANES]);
            }
        }
        words
    }
}

impl<V: QuadVector, I: Quad, S: Scales, const PLANES: usize> Group<V>
    for GroupedQuads<I, S, PLANES>
{
    const BYTES: usize = I::GROUP_BYTES;
    const OFFSET: i32 = if S::MINIMA { 0 } else { I::ABOVE };
    const WORDS: usize = Quads::<PLANES>::WORDS;
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
            return unsafe { add::<V, I, PLANES, R, M>(sums, weights, apart, x, stride) };
        }
        let (pairs, last) = sums.as_chunks_mut::<2>();
        for (i, sums) in pairs.iter_mut().enumerate() {
            // SAFETY: the caller's promise.
            unsafe {
                add::<V, I, PLANES, 2, M>(sums, weights.add(2 * i * apart), apart, x, stride)
            };
        }
        for sums in last {
            let (sums, weights) =
                (std::array::from_mut(sums), weights.wrapping_add((R - 1) * apart));
            // SAFETY: the caller's promise.
            unsafe { add::<V, I, PLANES, 1, M>(sums, weights, apart, x, stride) };
        }
    }
}

/// As [`Group::add`].
#[inline(always)]
unsafe fn add<V: QuadVector, I: Quad, const PLANES: usize, const R: usize, const M: usize>(
    sums: &mut [[V::Integers; M]; R],
    weights: *const u8,
    apart: usize,
    x: *const u32,
    stride: usize,
) {
    const { assert!(I::MOST <= V::MOST) };
    // SAFETY: the caller's promise; a prefetch never faults.
    unsafe {
        // Of low bytes, and of high ones.
        let mut planes = [[[V::splat_i32(0); M]; R]; PLANES];
        unroll!(Q, {
            let mut quads = [V::splat_i32(0); R];
            each!(r in R, {
                let group = weights.wrapping_add(r * apart);
                let read = Q * I::GROUP_BYTES / QUADS;
                // Each line once, while the quads go by.
                if read.is_multiple_of(LINE) {
                    V::prefetch_weights(group.wrapping_add(read + AHEAD), bits(I::GROUP_BYTES), M);
                }
                quads[r] = I::quad::<V>(group, Q);
            });
            each!(m in M, {
                let x = x.add(m * stride + 2 * PLANES * (Q / 2) + Q % 2).cast::<i32>();
                each!(i in PLANES, {
                    let x = V::splat_i32(x.add(2 * i).read());
                    let sums = &mut planes[PLANES - 1 - i];
                    each!(r in R, {
                        sums[r][m] = V::pin_i32(V::add_bytes(sums[r][m], quads[r], x));
                    });
                });
            });
        });
        let [low, high] =
            [planes[0], if PLANES == 2 { planes[1] } else { [[V::splat_i32(0); M]; R] }];
        each!(r in R, {
            each!(m in M, { sums[r][m] = V::total(sums[r][m], high[r][m], low[r][m]) });
        });
    }
}

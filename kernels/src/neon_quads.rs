//! Integers beside one row and more with FEAT_DotProd: bytes instead of pairs.
//!
//! Activations of 16 bits are `256 * high + low`, both of them signed bytes, and SDOT adds four products of
//! bytes to each of four lanes, where a multiplication of pairs makes four products and few cores begin
//! two of them in a cycle. Weights of every width fit into bytes. The sums are the same integers.

use std::arch::aarch64::*;
use std::arch::asm;
use std::marker::PhantomData;

use super::integers::{Bits, Group, Integer, LINE, PAIRS, Rounding, WORD};
use super::neon::{DOT, Neon, load_words, shifted};
use super::scales::Scales;
use super::tile::{AHEAD, STEP};
use super::vector::Vector;
use crate::format::GROUP;

/// Integers as quads: four columns of a lane in four bytes.
pub(super) struct Quads<I>(PhantomData<I>);

/// [`Quads`] with scales.
pub(super) struct GroupedQuads<I, S>(PhantomData<(I, S)>);

/// Two quads of each of sixteen lanes, four to a register.
type Eight = [[int8x16_t; 2]; 4];

/// How integers become quads.
pub(super) trait Quad: Integer {
    /// Which of eight columns the bytes of two quads are.
    const ORDER: [u8; STEP];

    /// Columns `8 i` to `8 i + 7` of the group; `i` is a constant after inlining.
    ///
    /// # Safety
    ///
    /// As for [`Vector`].
    unsafe fn eight(group: *const u8, i: usize) -> Eight;
}

/// Four columns of sixteen bytes each.
#[inline(always)]
unsafe fn transposed(columns: *const u8) -> [int8x16_t; 4] {
    // SAFETY: the caller's promise.
    unsafe {
        let [a, b, c, d] =
            [0, 1, 2, 3].map(|i| vreinterpretq_s16_s8(vld1q_s8(columns.add(16 * i).cast())));
        let bytes = |it| vreinterpretq_s8_s16(it);
        let halves = |it| vreinterpretq_s16_s8(it);
        let low = [vzip1q_s8(bytes(a), bytes(b)), vzip1q_s8(bytes(c), bytes(d))].map(halves);
        let high = [vzip2q_s8(bytes(a), bytes(b)), vzip2q_s8(bytes(c), bytes(d))].map(halves);
        [
            bytes(vzip1q_s16(low[0], low[1])),
            bytes(vzip2q_s16(low[0], low[1])),
            bytes(vzip1q_s16(high[0], high[1])),
            bytes(vzip2q_s16(high[0], high[1])),
        ]
    }
}

impl Quad for Bits<8> {
    const ORDER: [u8; STEP] = [0, 1, 2, 3, 4, 5, 6, 7];

    #[inline(always)]
    unsafe fn eight(group: *const u8, i: usize) -> Eight {
        // SAFETY: the caller's promise.
        unsafe {
            let first = transposed(group.add(i * 2 * WORD));
            let second = transposed(group.add((i * 2 + 1) * WORD));
            std::array::from_fn(|lanes| [first[lanes], second[lanes]])
        }
    }
}

/// Word `i` of each lane.
#[inline(always)]
unsafe fn word(group: *const u8, i: usize) -> [uint16x8_t; 4] {
    // SAFETY: the caller's promise.
    unsafe { load_words(group.add(i * WORD)).map(|it| vreinterpretq_u16_s32(it)) }
}

/// The bits `mask` of each half of a word that was shifted.
#[inline(always)]
fn bits(halves: uint16x8_t, shift: isize, mask: u16) -> uint16x8_t {
    // SAFETY: every CPU of this architecture has NEON.
    unsafe { vandq_u16(shifted(halves, shift), vdupq_n_u16(mask)) }
}

impl Quad for Bits<6> {
    const ORDER: [u8; STEP] = [0, 2, 1, 3, 4, 6, 5, 7];

    /// Six quads as they lie, two pairs of six bits to a half of a word, and two of what the words have left.
    #[inline(always)]
    unsafe fn eight(group: *const u8, i: usize) -> Eight {
        // SAFETY: the caller's promise.
        unsafe {
            if i < 3 {
                let [first, second] = [2 * i, 2 * i + 1].map(|i| {
                    word(group, i).map(|it| {
                        let apart = vsliq_n_u16::<8>(it, shifted(it, 6));
                        vreinterpretq_s8_u16(vandq_u16(apart, vdupq_n_u16(0x3f3f)))
                    })
                });
                return std::array::from_fn(|lanes| [first[lanes], second[lanes]]);
            }
            let [first, second] = [0, 1].map(|i| {
                let (a, b) = (word(group, 2 * i), word(group, 2 * i + 1));
                let high = word(group, 4 + i);
                std::array::from_fn::<_, 4, _>(|lanes| {
                    let low = vorrq_u16(shifted(a[lanes], 12), bits(b[lanes], 4, 0x0f00));
                    let high = high[lanes];
                    let high = vorrq_u16(bits(high, 8, 0x0030), bits(high, 2, 0x3000));
                    vreinterpretq_s8_u16(vorrq_u16(low, high))
                })
            });
            std::array::from_fn(|lanes| [first[lanes], second[lanes]])
        }
    }
}

/// The even nibbles of a word, and the odd ones.
#[inline(always)]
fn nibbles(word: uint16x8_t) -> [uint8x16_t; 2] {
    // SAFETY: every CPU of this architecture has NEON.
    unsafe {
        let bytes = vreinterpretq_u8_u16(word);
        [vandq_u8(bytes, vdupq_n_u8(0xf)), vshrq_n_u8::<4>(bytes)]
    }
}

impl Quad for Bits<5> {
    const ORDER: [u8; STEP] = [0, 2, 4, 6, 1, 3, 5, 7];

    /// Nibbles, and fifth bits: of four in a half of the last word, the even ones and the odd ones.
    #[inline(always)]
    unsafe fn eight(group: *const u8, i: usize) -> Eight {
        // SAFETY: the caller's promise.
        unsafe {
            let (words, fifth) = (word(group, i), word(group, 4));
            std::array::from_fn(|lanes| {
                let at = 4 * i as isize;
                let fifth = fifth[lanes];
                let even = vorrq_u16(bits(fifth, at - 4, 0x0010), bits(fifth, at - 10, 0x1000));
                let odd = vorrq_u16(bits(fifth, at - 3, 0x0010), bits(fifth, at - 9, 0x1000));
                let [low, high] = nibbles(words[lanes]);
                let both = |a, b| vreinterpretq_s8_u8(vorrq_u8(a, vreinterpretq_u8_u16(b)));
                [both(low, even), both(high, odd)]
            })
        }
    }
}

impl Quad for Bits<4> {
    const ORDER: [u8; STEP] = [0, 2, 4, 6, 1, 3, 5, 7];

    #[inline(always)]
    unsafe fn eight(group: *const u8, i: usize) -> Eight {
        // SAFETY: the caller's promise.
        unsafe { word(group, i).map(|it| nibbles(it).map(|it| vreinterpretq_s8_u8(it))) }
    }
}

/// Where the high bytes of both quads are among eight words, then the low ones.
const fn places(order: [u8; STEP]) -> [u8; 16] {
    let mut places = [0; 16];
    let mut i = 0;
    while i < STEP {
        places[i] = 4 * order[i] + 1;
        places[STEP + i] = 4 * order[i];
        i += 1;
    }
    places
}

impl<I: Quad> Rounding for Quads<I> {
    /// Of each eight columns four words: the high bytes of both quads, and their low bytes.
    #[inline(always)]
    unsafe fn arranged(integers: &[u32; GROUP]) -> [u32; PAIRS] {
        let mut words = [0; PAIRS];
        // SAFETY: the reads and the writes are as long as the arrays.
        unsafe {
            let places = vld1q_u8(const { &places(I::ORDER) }.as_ptr());
            let half = vdupq_n_u32(128);
            let words = words.as_chunks_mut::<4>().0;
            for (words, x) in words.iter_mut().zip(integers.as_chunks::<STEP>().0) {
                // A low byte counts as negative from 128 on: then the high byte is one more.
                let [a, b] = [0, 4].map(|at| {
                    let x = vld1q_u32(x.as_ptr().add(at));
                    vreinterpretq_u8_u32(veorq_u32(vaddq_u32(x, half), half))
                });
                let bytes = vqtbl2q_u8(uint8x16x2_t(a, b), places);
                vst1q_u32(words.as_mut_ptr(), vreinterpretq_u32_u8(bytes));
            }
        }
        words
    }
}

/// As `vdotq_laneq_s32`, which is not stable.
#[inline]
#[target_feature(enable = "neon,dotprod")]
fn add_bytes<const WORD: u32>(mut sums: int32x4_t, weights: int8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: one instruction on registers, which the caller's CPU has.
    unsafe {
        asm!(
            "sdot {0:v}.4s, {1:v}.16b, {2:v}.4b[{3}]",
            inout(vreg) sums, in(vreg) weights, in(vreg) x, const WORD,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}

type Sums = [int32x4_t; 4];

/// As [`Group::add`], of one block and of so many rows that registers hold their sums, high and low: up to
/// three.
#[inline(always)]
unsafe fn add<I: Quad, S: Scales, const M: usize, const PART: usize>(
    sums: &mut [Sums; M],
    weights: *const u8,
    x: *const u32,
    stride: usize,
) {
    // SAFETY: the caller's promise; a prefetch never faults.
    unsafe {
        let mut high = [[vdupq_n_s32(0); 4]; M];
        unroll!(QUARTER, {
            if QUARTER * S::PARTS / 4 == PART {
                for line in (0..I::GROUP_BYTES).step_by(LINE) {
                    if line * 4 / I::GROUP_BYTES == QUARTER {
                        <Neon<DOT>>::prefetch(weights.wrapping_add(line + AHEAD));
                    }
                }
                let x: [_; M] = std::array::from_fn(|m| {
                    vld1q_s8(x.add(m * stride + QUARTER * 4).cast())
                });
                let eight = I::eight(weights, QUARTER);
                for (lanes, [first, second]) in eight.into_iter().enumerate() {
                    for m in 0..M {
                        let (high, low) = (&mut high[m][lanes], &mut sums[m][lanes]);
                        *high = add_bytes::<0>(*high, first, x[m]);
                        *low = add_bytes::<2>(*low, first, x[m]);
                        *high = add_bytes::<1>(*high, second, x[m]);
                        *low = add_bytes::<3>(*low, second, x[m]);
                    }
                }
                for sums in high.iter_mut().chain(&mut *sums) {
                    *sums = <Neon<DOT>>::pin_i32(*sums);
                }
            }
        }, 0 1 2 3);
        for (sums, high) in sums.iter_mut().zip(high) {
            for (sum, high) in sums.iter_mut().zip(high) {
                *sum = vaddq_s32(*sum, vshlq_n_s32::<8>(high));
            }
        }
    }
}

impl<I: Quad, S: Scales> Group<Neon<DOT>> for GroupedQuads<I, S> {
    const BYTES: usize = I::GROUP_BYTES;
    const OFFSET: i32 = if S::MINIMA { 0 } else { I::MIDDLE };
    type Scales = S;

    /// Quads are made again for each few rows: two to ten instructions for four times four weights, beside
    /// four for each row.
    #[inline(always)]
    unsafe fn add<const R: usize, const M: usize, const PART: usize>(
        sums: &mut [[Sums; M]; R],
        weights: *const u8,
        apart: usize,
        x: *const u32,
        stride: usize,
    ) {
        for (r, sums) in sums.iter_mut().enumerate() {
            let weights = weights.wrapping_add(r * apart);
            let (threes, rest) =
                if M == 4 { (&mut [][..], &mut sums[..]) } else { sums.as_chunks_mut::<3>() };
            let (twos, ones) = rest.as_chunks_mut::<2>();
            let mut x = x;
            // SAFETY: the caller's promise.
            unsafe {
                for sums in threes {
                    add::<I, S, 3, PART>(sums, weights, x, stride);
                    x = x.wrapping_add(3 * stride);
                }
                for sums in twos {
                    add::<I, S, 2, PART>(sums, weights, x, stride);
                    x = x.wrapping_add(2 * stride);
                }
                for sum in ones {
                    add::<I, S, 1, PART>(std::array::from_mut(sum), weights, x, stride);
                    x = x.wrapping_add(stride);
                }
            }
        }
    }
}

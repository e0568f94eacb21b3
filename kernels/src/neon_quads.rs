//! Integers beside one row and more with FEAT_DotProd: bytes instead of pairs.
//!
//! Activations of 16 bits are `256 * high + low`, both of them signed bytes, and SDOT adds four products of
//! bytes to each of four lanes, where a multiplication of pairs makes four products and few cores begin
//! two of them in a cycle. Those of 8 bits have no high byte. Weights of every width fit into bytes. The sums are
//! the same integers.
//!
//! With FEAT_I8MM several rows take SMMLA, which multiplies two rows of eight bytes with two lanes: twice
//! the products of an instruction.

use std::arch::aarch64::*;
use std::arch::asm;
use std::marker::PhantomData;

use super::integers::{Bits, Group, Integer, LINE, PAIRS, Rounding, WORD};
use super::neon::{DOT, MATRICES, Neon, four, halves, in_turn, load_words, shifted};
use super::scales::Scales;
use super::tile::{AHEAD, STEP};
use super::vector::Vector;
use crate::format::GROUP;

/// Integers as quads: four columns of a lane in four bytes.
pub(super) struct Quads<I>(PhantomData<I>);

/// [`Quads`] with scales, beside both planes of bytes of activations, or the low one of those of 8 bits.
pub(super) struct GroupedQuads<I, S, const PLANES: usize>(PhantomData<(I, S)>);

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

impl Quad for Bits<8> {
    const ORDER: [u8; STEP] = [0, 2, 4, 6, 1, 3, 5, 7];

    #[inline(always)]
    unsafe fn eight(group: *const u8, i: usize) -> Eight {
        // SAFETY: the caller's promise.
        unsafe {
            let quads = group.add(i * 2 * WORD);
            four!(I => [0, WORD].map(|second| vld1q_s8(quads.add(second + 16 * I).cast())))
        }
    }
}

/// Word `i` of each lane.
#[inline(always)]
unsafe fn word(group: *const u8, i: usize) -> [uint16x8_t; 4] {
    // SAFETY: the caller's promise.
    unsafe {
        let words = load_words(group.add(i * WORD));
        four!(I => vreinterpretq_u16_s32(words[I]))
    }
}

/// The bits `mask` of each half of a word that was shifted.
#[inline(always)]
fn bits(halves: uint16x8_t, shift: isize, mask: u16) -> uint16x8_t {
    // SAFETY: every CPU of this architecture has NEON.
    unsafe { vandq_u16(shifted(halves, shift), vdupq_n_u16(mask)) }
}

/// Six bits of each byte of a half of a word, from its twelve lowest.
#[inline(always)]
fn two_pairs(word: uint16x8_t) -> int8x16_t {
    // SAFETY: every CPU of this architecture has NEON.
    unsafe {
        let apart = vsliq_n_u16::<8>(word, shifted(word, 6));
        vreinterpretq_s8_u16(vandq_u16(apart, vdupq_n_u16(0x3f3f)))
    }
}

/// Six bits of each byte of a half of a word, the four lowest of them from the highest of `a` and `b`.
#[inline(always)]
fn rest(a: uint16x8_t, b: uint16x8_t, high: uint16x8_t) -> int8x16_t {
    // SAFETY: every CPU of this architecture has NEON.
    unsafe {
        let low = vorrq_u16(shifted(a, 12), bits(b, 4, 0x0f00));
        let high = vorrq_u16(bits(high, 8, 0x0030), bits(high, 2, 0x3000));
        vreinterpretq_s8_u16(vorrq_u16(low, high))
    }
}

impl Quad for Bits<6> {
    const ORDER: [u8; STEP] = [0, 2, 1, 3, 4, 6, 5, 7];

    /// Six quads as they lie, two pairs of six bits to a half of a word, and two of what the words have left.
    #[inline(always)]
    unsafe fn eight(group: *const u8, i: usize) -> Eight {
        // SAFETY: the caller's promise.
        unsafe {
            if i < 3 {
                let (first, second) = (word(group, 2 * i), word(group, 2 * i + 1));
                return four!(I => [two_pairs(first[I]), two_pairs(second[I])]);
            }
            let (a, b, high) = (word(group, 0), word(group, 1), word(group, 4));
            let first = four!(I => rest(a[I], b[I], high[I]));
            let (a, b, high) = (word(group, 2), word(group, 3), word(group, 5));
            four!(I => [first[I], rest(a[I], b[I], high[I])])
        }
    }
}

/// The even nibbles of a word, and the odd ones.
#[inline(always)]
fn nibbles(word: uint16x8_t) -> [int8x16_t; 2] {
    // SAFETY: every CPU of this architecture has NEON.
    unsafe {
        let bytes = vreinterpretq_u8_u16(word);
        [
            vreinterpretq_s8_u8(vandq_u8(bytes, vdupq_n_u8(0xf))),
            vreinterpretq_s8_u8(vshrq_n_u8::<4>(bytes)),
        ]
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
            let at = 4 * i as isize;
            four!(I => {
                let fifth = fifth[I];
                let even = vorrq_u16(bits(fifth, at - 4, 0x0010), bits(fifth, at - 10, 0x1000));
                let odd = vorrq_u16(bits(fifth, at - 3, 0x0010), bits(fifth, at - 9, 0x1000));
                let [low, high] = nibbles(words[I]);
                [
                    vorrq_s8(low, vreinterpretq_s8_u16(even)),
                    vorrq_s8(high, vreinterpretq_s8_u16(odd)),
                ]
            })
        }
    }
}

impl Quad for Bits<4> {
    const ORDER: [u8; STEP] = [0, 2, 4, 6, 1, 3, 5, 7];

    #[inline(always)]
    unsafe fn eight(group: *const u8, i: usize) -> Eight {
        // SAFETY: the caller's promise.
        unsafe {
            let words = word(group, i);
            four!(I => nibbles(words[I]))
        }
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
#[inline(always)]
unsafe fn add_bytes<const WORD: u32>(
    mut sums: int32x4_t,
    weights: int8x16_t,
    x: int8x16_t,
) -> int32x4_t {
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
unsafe fn add<I: Quad, S: Scales, const PLANES: usize, const M: usize, const PART: usize>(
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
                let eight = I::eight(weights, QUARTER);
                // Loops would be some at run time too, with the sums in memory.
                unroll!(ROW, {
                    if ROW < M {
                        let x = vld1q_s8(x.add(ROW * stride + QUARTER * 4).cast());
                        let (high, low) = (&mut high[ROW], &mut sums[ROW]);
                        unroll!(LANES, {
                            let [first, second] = eight[LANES];
                            if PLANES == 2 {
                                high[LANES] = add_bytes::<0>(high[LANES], first, x);
                                high[LANES] = add_bytes::<1>(high[LANES], second, x);
                            }
                            low[LANES] = add_bytes::<2>(low[LANES], first, x);
                            low[LANES] = add_bytes::<3>(low[LANES], second, x);
                        }, 0 1 2 3);
                        if PLANES == 2 {
                            *high = <Neon<DOT>>::pin_i32(*high);
                        }
                        *low = <Neon<DOT>>::pin_i32(*low);
                    }
                }, 0 1 2);
            }
        }, 0 1 2 3);
        for (sums, high) in sums.iter_mut().zip(high).filter(|_| PLANES == 2) {
            *sums = four!(I => vaddq_s32(sums[I], vshlq_n_s32::<8>(high[I])));
        }
    }
}

/// Two rows of eight bytes times two lanes of eight, added to two sums of each row: `vmmlaq_s32`, which is not
/// stable.
#[inline(always)]
unsafe fn add_matrix(mut sums: int32x4_t, rows: int8x16_t, lanes: int8x16_t) -> int32x4_t {
    // SAFETY: one instruction on registers, which the caller's CPU has.
    unsafe {
        asm!(
            "smmla {0:v}.4s, {1:v}.16b, {2:v}.16b",
            inout(vreg) sums, in(vreg) rows, in(vreg) lanes,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}

/// Two quads of four lanes as eight bytes of two lanes, and of the other two.
#[inline(always)]
fn lanes(quads: [int8x16_t; 2]) -> [int8x16_t; 2] {
    // SAFETY: every CPU of this architecture has NEON.
    unsafe {
        let [first, second] = [vreinterpretq_s32_s8(quads[0]), vreinterpretq_s32_s8(quads[1])];
        let [a, b] = in_turn(first, second);
        [vreinterpretq_s8_s32(a), vreinterpretq_s8_s32(b)]
    }
}

/// As [`Group::add`], of one block and `TWOS` times two rows, up to three: registers hold their sums of eight lanes,
/// high and low. Of an odd number the last row is taken twice.
#[inline(always)]
unsafe fn add_twos<
    I: Quad,
    S: Scales,
    const PLANES: usize,
    const M: usize,
    const TWOS: usize,
    const PART: usize,
>(
    sums: &mut [Sums; M],
    weights: *const u8,
    x: *const u32,
    stride: usize,
) {
    // SAFETY: the caller's promise; a prefetch never faults.
    unsafe {
        unroll!(HALF, {
            // Of two lanes each.
            let mut high = [[vdupq_n_s32(0); 4]; TWOS];
            let mut low = [[vdupq_n_s32(0); 4]; TWOS];
            unroll!(QUARTER, {
                if QUARTER * S::PARTS / 4 == PART {
                    if HALF == 0 {
                        for line in (0..I::GROUP_BYTES).step_by(LINE) {
                            if line * 4 / I::GROUP_BYTES == QUARTER {
                                <Neon<MATRICES>>::prefetch(weights.wrapping_add(line + AHEAD));
                            }
                        }
                    }
                    let eight = I::eight(weights, QUARTER);
                    let [first, second] = lanes(eight[2 * HALF]);
                    let [third, fourth] = lanes(eight[2 * HALF + 1]);
                    let lanes = [first, second, third, fourth];
                    unroll!(TWO, {
                        if TWO < TWOS {
                            let other = if TWO * 2 + 1 < M { TWO * 2 + 1 } else { TWO * 2 };
                            let [a, b] = [TWO * 2, other]
                                .map(|row| vld1q_s32(x.add(row * stride + QUARTER * 4).cast()));
                            let bytes = halves(a, b).map(|words| vreinterpretq_s8_s32(words));
                            if PLANES == 2 {
                                high[TWO] = four!(I => add_matrix(high[TWO][I], bytes[0], lanes[I]));
                                high[TWO] = <Neon<MATRICES>>::pin_i32(high[TWO]);
                            }
                            low[TWO] = four!(I => add_matrix(low[TWO][I], bytes[1], lanes[I]));
                            low[TWO] = <Neon<MATRICES>>::pin_i32(low[TWO]);
                        }
                    }, 0 1 2);
                }
            }, 0 1 2 3);
            unroll!(TWO, {
                if TWO < TWOS {
                    let (high, low) = (high[TWO], low[TWO]);
                    let whole = match PLANES {
                        1 => low,
                        _ => four!(I => vaddq_s32(low[I], vshlq_n_s32::<8>(high[I]))),
                    };
                    let registers = [halves(whole[0], whole[1]), halves(whole[2], whole[3])];
                    unroll!(AT, {
                        let [first, second] = registers[AT];
                        let sum = &mut sums[TWO * 2][2 * HALF + AT];
                        *sum = vaddq_s32(*sum, first);
                        if TWO * 2 + 1 < M {
                            let sum = &mut sums[TWO * 2 + 1][2 * HALF + AT];
                            *sum = vaddq_s32(*sum, second);
                        }
                    }, 0 1);
                }
            }, 0 1 2);
        }, 0 1);
    }
}

/// Rows one by one.
#[inline(always)]
unsafe fn add_ones<I: Quad, S: Scales, const PLANES: usize, const M: usize, const PART: usize>(
    sums: &mut [Sums; M],
    weights: *const u8,
    x: *const u32,
    stride: usize,
) {
    // SAFETY: the caller's promise; the rows are those of `sums`.
    unsafe {
        let sums = sums.as_mut_ptr();
        let first = if M == 4 { 2 } else { 3 };
        let (second, after) = (sums.wrapping_add(first), x.wrapping_add(first * stride));
        match M {
            1 => add::<I, S, PLANES, 1, PART>(&mut *sums.cast(), weights, x, stride),
            2 | 4 => add::<I, S, PLANES, 2, PART>(&mut *sums.cast(), weights, x, stride),
            _ => add::<I, S, PLANES, 3, PART>(&mut *sums.cast(), weights, x, stride),
        }
        match M {
            1..=3 => {}
            4 | 5 => add::<I, S, PLANES, 2, PART>(&mut *second.cast(), weights, after, stride),
            _ => add::<I, S, PLANES, 3, PART>(&mut *second.cast(), weights, after, stride),
        }
    }
}

impl<I: Quad, S: Scales, const PLANES: usize, const MORE: u8> Group<Neon<MORE>>
    for GroupedQuads<I, S, PLANES>
{
    const BYTES: usize = I::GROUP_BYTES;
    const OFFSET: i32 = if S::MINIMA { 0 } else { I::MIDDLE };
    type Scales = S;

    /// Quads are made again for each few rows: up to ten instructions for four times four weights, beside
    /// four for each row, or two with FEAT_I8MM.
    #[inline(always)]
    unsafe fn add<const R: usize, const M: usize, const PART: usize>(
        sums: &mut [[Sums; M]; R],
        weights: *const u8,
        apart: usize,
        x: *const u32,
        stride: usize,
    ) {
        // SAFETY: the caller's promise; the rows are those of a block.
        unsafe {
            unroll!(BLOCK, {
                if BLOCK < R {
                    let weights = weights.wrapping_add(BLOCK * apart);
                    let sums = &mut sums[BLOCK];
                    match (MORE, M) {
                        (MATRICES, 2) => add_twos::<I, S, PLANES, M, 1, PART>(sums, weights, x, stride),
                        (MATRICES, 3 | 4) => add_twos::<I, S, PLANES, M, 2, PART>(sums, weights, x, stride),
                        (MATRICES, 5 | 6) => add_twos::<I, S, PLANES, M, 3, PART>(sums, weights, x, stride),
                        _ => add_ones::<I, S, PLANES, M, PART>(sums, weights, x, stride),
                    }
                }
            }, 0 1 2 3);
        }
    }
}

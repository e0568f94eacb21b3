//! Weights that are integers with scales: each group of columns, or each half of one, is one sum of
//! integers. Activations are integers too (`rounded.rs`); products of pairs are then exact, two columns
//! of them to an instruction.

use std::marker::PhantomData;

use super::LANES;
use super::scales::Scales;
use super::tile::{AHEAD, STEP};
use super::vector::Vector;
use crate::format::GROUP;

/// Pairs of columns of a group, and of [`STEP`] columns.
pub(super) const PAIRS: usize = GROUP / 2;
const STEP_PAIRS: usize = STEP / 2;

/// Bytes of one word of every lane.
pub(super) const WORD: usize = LANES * size_of::<u32>();

/// Bytes of a line of the caches.
pub(super) const LINE: usize = 64;

/// Bits of a weight, of which a group of a block has so many bytes.
pub(super) const fn bits(group_bytes: usize) -> usize {
    group_bytes * 8 / (GROUP * LANES)
}

/// How activations are arranged, for the weights that they meet.
pub(super) trait Rounding: 'static {
    /// Words of a group.
    const WORDS: usize = PAIRS;

    /// A group in the order in which it meets the weights, as the first [`WORDS`](Self::WORDS) of the result.
    /// Integers are in the low halves.
    ///
    /// # Safety
    ///
    /// The CPU has the instructions of the implementation.
    unsafe fn arranged(integers: &[u32; GROUP]) -> [u32; PAIRS];
}

/// How a group of columns is multiplied.
pub(super) trait Group<V: Vector>: 'static {
    /// Bytes of the weights of a group of a block; its scales lie behind them.
    const BYTES: usize;
    /// What is stored is the integer of a weight plus this.
    const OFFSET: i32;
    /// Words of a group of activations: the [`Rounding::WORDS`] of what
    /// [`round_row`](crate::round_row) arranges for it.
    const WORDS: usize = PAIRS;
    /// How its scales lie.
    type Scales: Scales;

    /// Adds the products of part `PART` of the group of `M` rows, `stride` apart at `x`, with `R` blocks,
    /// `apart` bytes apart at `weights`.
    ///
    /// # Safety
    ///
    /// As for [`Vector`].
    unsafe fn add<const R: usize, const M: usize, const PART: usize>(
        sums: &mut [[V::Integers; M]; R],
        weights: *const u8,
        apart: usize,
        x: *const u32,
        stride: usize,
    );
}

/// How integers lie, as pairs of columns: what meets pair `i` of a group is word `i` of activations as its
/// [`Rounding`] arranges them. The first half of the pairs has the first half of the group.
pub(super) trait Integer: 'static {
    /// Bytes of the weights of a group of a block.
    const GROUP_BYTES: usize;
    /// What stands for zero where weights have no minima.
    const MIDDLE: i32;
    /// Pairs after which the others lie in the words behind as these do in theirs; 4, 8 or 16.
    const PERIOD: usize = PAIRS;

    /// Pair `i` of the group that starts at `group`; `i` is a constant after inlining.
    ///
    /// # Safety
    ///
    /// As for [`Vector`].
    unsafe fn pairs<V: Vector>(group: *const u8, i: usize) -> V::Integers;
}

/// Integers with scales, as pairs: a stored format as types see it, whose value is
/// [`Format`](super::Format).
pub(super) struct Grouped<I, S>(PhantomData<(I, S)>);

impl<V: Vector, I: Integer, S: Scales> Group<V> for Grouped<I, S> {
    const BYTES: usize = I::GROUP_BYTES;
    const OFFSET: i32 = if S::MINIMA { 0 } else { I::MIDDLE };
    type Scales = S;

    #[inline(always)]
    unsafe fn add<const R: usize, const M: usize, const PART: usize>(
        sums: &mut [[V::Integers; M]; R],
        weights: *const u8,
        apart: usize,
        x: *const u32,
        stride: usize,
    ) {
        // SAFETY: the caller's promise; a prefetch never faults.
        unsafe {
            let here = Round::of(I::PERIOD, S::PARTS, PART);
            let bytes = I::GROUP_BYTES / PAIRS;
            let mut weights = weights.wrapping_add(here.behind * bytes);
            let mut x = x.wrapping_add(here.behind);
            for _ in 0..here.rounds {
                unroll!(QUARTER, {
                    if const { Round::of(I::PERIOD, S::PARTS, PART).has(QUARTER * STEP_PAIRS) } {
                        unroll!(I, {
                            let pair = QUARTER * STEP_PAIRS + I;
                            let mut pairs = [V::splat_i32(0); R];
                            each!(r in R, {
                                let weights = weights.wrapping_add(r * apart);
                                // Each line once, while the pairs go by.
                                if pair * bytes % LINE < bytes {
                                    let line = pair * bytes / LINE * LINE;
                                    let ahead = weights.wrapping_add(line + AHEAD);
                                    V::prefetch_weights(ahead, bits(I::GROUP_BYTES), M);
                                }
                                pairs[r] = I::pairs::<V>(weights, pair);
                            });
                            each!(m in M, {
                                let x = V::splat_i32(x.add(m * stride + pair).read() as i32);
                                each!(r in R, {
                                    let sum = V::add_products(sums[r][m], pairs[r], x);
                                    sums[r][m] = V::pin_i32(sum);
                                });
                            });
                        }, 0 1 2 3);
                    }
                }, 0 1 2 3);
                weights = weights.wrapping_add((here.end - here.first) * bytes);
                x = x.wrapping_add(here.end - here.first);
            }
        }
    }
}

/// The pairs of a part, as what is compiled once and runs once or more.
#[derive(Clone, Copy)]
struct Round {
    /// The pairs of the first round.
    first: usize,
    end: usize,
    /// Pairs before it that are skipped.
    behind: usize,
    rounds: usize,
}

impl Round {
    /// Of part `part` of so many, where words [repeat](Integer::PERIOD) after `period` pairs.
    const fn of(period: usize, parts: usize, part: usize) -> Self {
        let pairs = PAIRS / parts;
        let (behind, end) = (part * pairs, (part + 1) * pairs);
        if period == PAIRS {
            return Self { first: behind, end, behind: 0, rounds: 1 };
        }
        let end = if period < pairs { period } else { pairs };
        Self { first: 0, end, behind, rounds: pairs / end }
    }

    const fn has(self, pair: usize) -> bool {
        self.first <= pair && pair < self.end
    }
}

/// Columns as [`pack_block`](crate::quantise::pack_block) has them, of so many bits.
pub(super) struct Bits<const BITS: usize>;

/// Each column meets the next one.
#[inline(always)]
fn neighbours(integers: &[u32; GROUP]) -> [u32; PAIRS] {
    std::array::from_fn(|i| integers[2 * i] & 0xffff | integers[2 * i + 1] << 16)
}

/// Column `i` of each eight meets column `i + 4`: one shift and one mask take both, of words that have eight nibbles or
/// every other column.
#[inline(always)]
fn fours(integers: &[u32; GROUP]) -> [u32; PAIRS] {
    std::array::from_fn(|i| {
        let first = i / STEP_PAIRS * STEP + i % STEP_PAIRS;
        integers[first] & 0xffff | integers[first + STEP_PAIRS] << 16
    })
}

/// Of four bits the first word of each eight columns.
#[inline(always)]
unsafe fn nibbles<V: Vector>(group: *const u8, i: usize) -> V::Integers {
    let shift = 4 * (i % STEP_PAIRS) as isize;
    // SAFETY: as the caller promises.
    unsafe { V::bits(group.add(i / STEP_PAIRS * WORD), shift, 0x000f_000f) }
}

impl Rounding for Bits<8> {
    #[inline(always)]
    unsafe fn arranged(integers: &[u32; GROUP]) -> [u32; PAIRS] {
        fours(integers)
    }
}

impl Integer for Bits<8> {
    const GROUP_BYTES: usize = GROUP * LANES;
    const MIDDLE: i32 = 0;
    const PERIOD: usize = STEP_PAIRS;

    /// The even columns of each eight lie in one word, the odd ones in the next.
    #[inline(always)]
    unsafe fn pairs<V: Vector>(group: *const u8, i: usize) -> V::Integers {
        // SAFETY: as the caller promises.
        unsafe { V::pairs_i8(group.add((i / 4 * 2 + i % 2) * WORD), i % 4 >= 2) }
    }
}

impl Rounding for Bits<6> {
    #[inline(always)]
    unsafe fn arranged(integers: &[u32; GROUP]) -> [u32; PAIRS] {
        neighbours(integers)
    }
}

impl Integer for Bits<6> {
    const GROUP_BYTES: usize = 6 * WORD;
    const MIDDLE: i32 = 32;

    /// Twelve pairs as they lie, and four of what the words have left.
    #[inline(always)]
    unsafe fn pairs<V: Vector>(group: *const u8, i: usize) -> V::Integers {
        // SAFETY: as the caller promises.
        unsafe {
            if i < 12 {
                return V::bits(group.add(i / 2 * WORD), 6 * (i % 2) as isize, 0x003f_003f);
            }
            let rest = i - 12;
            let low = V::bits(group.add(rest * WORD), 12, 0x000f_000f);
            let shift = 8 + 2 * (rest % 2) as isize;
            V::or(low, V::bits(group.add((4 + rest / 2) * WORD), shift, 0x0030_0030))
        }
    }
}

impl Rounding for Bits<5> {
    #[inline(always)]
    unsafe fn arranged(integers: &[u32; GROUP]) -> [u32; PAIRS] {
        fours(integers)
    }
}

impl Integer for Bits<5> {
    const GROUP_BYTES: usize = 5 * WORD;
    const MIDDLE: i32 = 16;

    /// Nibbles, and the fifth bits of pair `i` in bit `i` of both halves of the last word.
    #[inline(always)]
    unsafe fn pairs<V: Vector>(group: *const u8, i: usize) -> V::Integers {
        // SAFETY: as the caller promises.
        unsafe {
            let high = V::bits(group.add(4 * WORD), i as isize - 4, 0x0010_0010);
            V::or(nibbles::<V>(group, i), high)
        }
    }
}

impl Rounding for Bits<4> {
    #[inline(always)]
    unsafe fn arranged(integers: &[u32; GROUP]) -> [u32; PAIRS] {
        fours(integers)
    }
}

impl Integer for Bits<4> {
    const GROUP_BYTES: usize = 4 * WORD;
    const MIDDLE: i32 = 8;
    const PERIOD: usize = STEP_PAIRS;

    #[inline(always)]
    unsafe fn pairs<V: Vector>(group: *const u8, i: usize) -> V::Integers {
        // SAFETY: as the caller promises.
        unsafe { nibbles::<V>(group, i) }
    }
}

/// Activations are arranged as for four bits.
impl Integer for Bits<2> {
    const GROUP_BYTES: usize = 2 * WORD;
    const MIDDLE: i32 = 2;
    const PERIOD: usize = 2 * STEP_PAIRS;

    /// Eight pairs of a word.
    #[inline(always)]
    unsafe fn pairs<V: Vector>(group: *const u8, i: usize) -> V::Integers {
        // SAFETY: as the caller promises.
        unsafe { V::bits(group.add(i / 8 * WORD), 2 * (i % 8) as isize, 0x0003_0003) }
    }
}

/// Activations are arranged as for four bits.
impl Integer for Bits<3> {
    const GROUP_BYTES: usize = 3 * WORD;
    const MIDDLE: i32 = 4;

    /// As two bits, and the third bits of pair `i` in bit `i` of both halves of the last word.
    #[inline(always)]
    unsafe fn pairs<V: Vector>(group: *const u8, i: usize) -> V::Integers {
        // SAFETY: as the caller promises.
        unsafe {
            let high = V::bits(group.add(2 * WORD), i as isize - 2, 0x0004_0004);
            V::or(Bits::<2>::pairs::<V>(group, i), high)
        }
    }
}

/// Sixteen levels that four bits stand for.
pub(super) trait Table: 'static {
    /// Each plus [`ABOVE`], so that none is negative.
    const LEVELS: [u8; 16];
}

/// What is added to levels.
const ABOVE: i32 = 128;

const fn above(levels: [i8; 16]) -> [u8; 16] {
    let mut out = [0; 16];
    let mut i = 0;
    while i < 16 {
        out[i] = (levels[i] as i32 + ABOVE) as u8;
        i += 1;
    }
    out
}

/// Of IQ4_NL and IQ4_XS.
pub(super) struct Iq4;

impl Table for Iq4 {
    const LEVELS: [u8; 16] = above(crate::format::IQ4);
}

/// Of MXFP4.
pub(super) struct E2m1;

impl Table for E2m1 {
    const LEVELS: [u8; 16] = above(crate::format::E2M1);
}

/// Numbers of levels, as [`Bits`] of four bits.
pub(super) struct Levels<T>(PhantomData<T>);

impl<T: Table> Integer for Levels<T> {
    const GROUP_BYTES: usize = Bits::<4>::GROUP_BYTES;
    const MIDDLE: i32 = ABOVE;
    const PERIOD: usize = STEP_PAIRS;

    #[inline(always)]
    unsafe fn pairs<V: Vector>(group: *const u8, i: usize) -> V::Integers {
        // SAFETY: as the caller promises.
        unsafe { V::look_up(nibbles::<V>(group, i), &T::LEVELS) }
    }
}

/// Pairs that were [decoded](super::decoded): a vector of each.
pub(super) struct Pairs;

impl Integer for Pairs {
    const GROUP_BYTES: usize = PAIRS * WORD;
    const MIDDLE: i32 = 0;
    const PERIOD: usize = STEP_PAIRS;

    #[inline(always)]
    unsafe fn pairs<V: Vector>(group: *const u8, i: usize) -> V::Integers {
        // SAFETY: as the caller promises.
        unsafe { V::load_i32(group.add(i * WORD)) }
    }
}

//! Several rows meet groups that were decoded: pairs of integers, multiplied with those that their parts have,
//! with scales and minima in f32, a few groups of a few blocks at a time, which all rows meet while they are
//! in the L1 cache. One kernel serves every format so.

use std::marker::PhantomData;

use super::Product;
use super::integer_tile::{IntegerTile, SUM_WORDS, block_bytes};
use super::integers::{Grouped, Integer, PAIRS, Pairs, WORD};
use super::scales::Scales;
use super::scratch::with_scratch;
use super::tile::{AHEAD, Parts};
use super::vector::{Job, Vector};
use super::walk::{clear_padding, tiles};
use crate::LANES;

/// Blocks and groups that are decoded together: 18 KB, beside which there is room for activations.
pub(super) const BLOCKS: usize = 4;
pub(super) const GROUPS: usize = 4;

/// The kernel of one vector for integers with scales, for several rows.
///
/// # Safety
///
/// As for [`Kernel`](super::Kernel).
pub(super) unsafe fn several<V: Vector, I: Integer, S: Scales>(p: &Product) {
    let words = BLOCKS * GROUPS * decoded_bytes::<S>() / size_of::<f32>();
    // SAFETY: the caller's promise; there is as much scratch.
    unsafe {
        clear_padding(p);
        with_scratch(SUM_WORDS + words, |scratch| {
            let all = IntegerTile::<Grouped<Pairs, S::Decoded>>::new::<V>(p, scratch);
            let to = scratch.add(SUM_WORDS).cast::<u8>();
            let groups = p.columns.div_ceil(crate::GROUP);
            for block in (0..p.blocks).step_by(BLOCKS) {
                let blocks = BLOCKS.min(p.blocks - block);
                for first in (0..groups).step_by(GROUPS) {
                    let part = GROUPS.min(groups - first);
                    V::enter(&Decode::<I, S> {
                        weights: p.weights,
                        groups,
                        blocks: (block, blocks),
                        part: (first, part),
                        to,
                        format: PhantomData,
                    });
                    let tile = all.of_groups::<V>(to, (first, part), (block, blocks));
                    for (row, rows) in tiles::<V>(p.used, V::ROWS) {
                        V::run(rows, &Parts::<V>::rows_from(tile, row));
                    }
                }
            }
        });
    }
}

/// Bytes of a decoded group.
pub(super) const fn decoded_bytes<S: Scales>() -> usize {
    PAIRS * WORD + S::Decoded::BYTES
}

/// Decodes some groups of some blocks.
pub(super) struct Decode<I, S> {
    pub weights: *const u8,
    /// Of a block.
    pub groups: usize,
    /// The first block, and how many.
    pub blocks: (usize, usize),
    /// The first group, and how many.
    pub part: (usize, usize),
    pub to: *mut u8,
    pub format: PhantomData<(I, S)>,
}

impl<V: Vector, I: Integer, S: Scales> Job<V> for Decode<I, S> {
    #[inline(always)]
    unsafe fn run(&self) {
        let Self { weights, groups, blocks: (block, blocks), part: (first, part), mut to, .. } =
            *self;
        let group_bytes = I::GROUP_BYTES + S::BYTES;
        let together_bytes = S::HEAD + S::TOGETHER * group_bytes;
        // SAFETY: the caller's promise: the weights have these blocks, each with as many groups, and `to`
        // has room for them; a prefetch never faults.
        unsafe {
            for block in block..block + blocks {
                let of_block = weights.add(block * block_bytes::<V, Grouped<I, S>>(groups));
                for group in first..first + part {
                    let head = of_block.add(group / S::TOGETHER * together_bytes);
                    let at = head.add(S::HEAD + group % S::TOGETHER * group_bytes);
                    for line in (0..group_bytes).step_by(super::integers::LINE) {
                        V::prefetch(at.wrapping_add(line + AHEAD));
                    }
                    let beside = at.add(I::GROUP_BYTES);
                    let integers = [
                        S::integer::<V>(head, beside, 0),
                        S::integer::<V>(head, beside, S::PARTS - 1),
                    ];
                    unroll!(QUARTER, {
                        unroll!(STEP, {
                            let pair = 4 * QUARTER + STEP;
                            let mut pairs = I::pairs::<V>(at, pair);
                            if const { !S::MINIMA && I::MIDDLE != 0 } {
                                let middle = V::splat_i32(I::MIDDLE << 16 | I::MIDDLE);
                                pairs = V::subtract_pairs(pairs, middle);
                            }
                            if S::INTEGERS {
                                pairs = V::multiply_pairs(pairs, integers[QUARTER / 2]);
                            }
                            V::store_i32(pairs, to.add(pair * WORD));
                        }, 0 1 2 3);
                    }, 0 1 2 3);
                    let scales = to.add(PAIRS * WORD).cast::<f32>();
                    each!(i in S::Decoded::PARTS, {
                        S::scale::<V>(head, beside, i).store(scales.add(2 * i * LANES));
                        S::minimum::<V>(head, beside, i).store(scales.add((2 * i + 1) * LANES));
                    });
                    to = to.add(decoded_bytes::<S>());
                }
            }
        }
    }
}

//! Some rows of rounded activations against some blocks of integers.

use std::marker::PhantomData;

use super::integers::{Group, PAIRS};
use super::rounded::Rounded;
use super::scales::Scales;
use super::tile::{AHEAD, Parts};
use super::vector::{Tile, Vector};
use super::{LANES, Product};

/// Most vectors of sums of a tile.
const SUMS: usize = 16;

/// Words of scratch that a product takes.
pub(super) const SUM_WORDS: usize = SUMS * LANES;

/// Rows of `x` times a run of blocks.
pub(super) struct IntegerTile<F> {
    weights: *const u8,
    block_bytes: usize,
    x: Rounded,
    /// The groups of `x` that the weights have: all, or those that were decoded.
    first: usize,
    groups: usize,
    y: *mut f32,
    y_stride: usize,
    blocks: usize,
    /// `[SUMS, 16]`: what a tile adds to after each group. Spilled to a stack that is aligned to 16
    /// bytes, sums would straddle cache lines.
    sums: *mut f32,
    format: PhantomData<F>,
}

impl<F> Clone for IntegerTile<F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F> Copy for IntegerTile<F> {}

/// Bytes of a block of so many groups.
pub(super) fn block_bytes<V: Vector, F: Group<V>>(groups: usize) -> usize {
    groups.div_ceil(F::Scales::TOGETHER) * F::Scales::HEAD + groups * (F::BYTES + F::Scales::BYTES)
}

impl<F> IntegerTile<F> {
    /// The whole product, with [`SUM_WORDS`] of scratch.
    pub fn new<V: Vector>(p: &Product, sums: *mut f32) -> Self
    where
        F: Group<V>,
    {
        let x = Rounded::new(p.x.cast_mut(), p.columns);
        Self {
            weights: p.weights,
            block_bytes: block_bytes::<V, F>(x.groups()),
            x,
            first: 0,
            groups: x.groups(),
            y: p.y,
            y_stride: p.stride,
            blocks: p.blocks,
            sums,
            format: PhantomData,
        }
    }

    /// The same with `blocks` blocks of `groups` groups from `first` on, which lie at `weights`, and whose
    /// products are added to those of the groups before.
    pub fn of_groups<V: Vector>(
        self,
        weights: *const u8,
        (first, groups): (usize, usize),
        (block, blocks): (usize, usize),
    ) -> Self
    where
        F: Group<V>,
    {
        let y = self.y.wrapping_add(block * LANES);
        let block_bytes = block_bytes::<V, F>(groups);
        Self { weights, block_bytes, first, groups, y, blocks, ..self }
    }
}

impl<V: Vector, F: Group<V>> Parts<V> for IntegerTile<F> {
    unsafe fn part(self, block: usize, blocks: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            Self {
                weights: self.weights.add(block * self.block_bytes),
                y: self.y.add(block * LANES),
                blocks,
                ..self
            }
        }
    }

    unsafe fn rows_from(self, first: usize) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self { x: self.x.rows_from(first), y: self.y.add(first * self.y_stride), ..self } }
    }
}

impl<V: Vector, F: Group<V>> Tile<V> for IntegerTile<F> {
    fn blocks(&self) -> usize {
        self.blocks
    }

    #[inline(always)]
    unsafe fn multiply<const R: usize, const M: usize>(&self, block: usize, step: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            const { assert!(R * M <= SUMS) };
            let sum_of = |r: usize, m: usize| self.sums.add((r * M + m) * LANES);
            let y_of =
                |r: usize, m: usize| self.y.add(m * self.y_stride + (block + r * step) * LANES);
            for r in 0..R {
                for m in 0..M {
                    let sum = if self.first == 0 { V::splat(0.0) } else { V::load(y_of(r, m)) };
                    sum.store(sum_of(r, m));
                }
            }
            let apart = step * self.block_bytes;
            let mut head = self.weights.add(block * self.block_bytes);
            let mut group = 0;
            while group < self.groups {
                let together = F::Scales::TOGETHER.min(self.groups - group);
                for i in 0..together {
                    let weights = head.add(F::Scales::HEAD).add(i * (F::BYTES + F::Scales::BYTES));
                    self.add_part::<V, R, M, 0>(self.first + group + i, head, weights, apart);
                    if F::Scales::PARTS == 2 {
                        self.add_part::<V, R, M, 1>(self.first + group + i, head, weights, apart);
                    }
                }
                head = head.add(block_bytes::<V, F>(together));
                group += together;
            }
            for r in 0..R {
                for m in 0..M {
                    V::load(sum_of(r, m)).store(y_of(r, m));
                }
            }
        }
    }
}

impl<F> IntegerTile<F> {
    /// Adds the products of part `PART` of a group to the sums.
    ///
    /// # Safety
    ///
    /// As for [`Tile::multiply`]: of the group the first block has `weights`, and `head` before it.
    #[inline(always)]
    unsafe fn add_part<V: Vector, const R: usize, const M: usize, const PART: usize>(
        &self,
        group: usize,
        head: *const u8,
        weights: *const u8,
        apart: usize,
    ) where
        F: Group<V>,
    {
        let stride = self.x.stride();
        let (pairs, x_scales, x_sums) = self.x.parts();
        // SAFETY: the caller's promise; a prefetch never faults.
        unsafe {
            let x_sum = |m: usize| {
                let [first, second] = *x_sums.byte_add(m * stride * size_of::<u32>()).add(group);
                match (F::Scales::PARTS, PART) {
                    (1, _) => first.wrapping_add(second),
                    (_, 0) => first,
                    _ => second,
                }
            };
            let mut sums = [[V::splat_i32(0); M]; R];
            if F::OFFSET != 0 {
                for m in 0..M {
                    let start = V::splat_i32(x_sum(m).wrapping_mul(-F::OFFSET));
                    for sums in &mut sums {
                        sums[m] = start;
                    }
                }
            }
            F::add::<R, M, PART>(&mut sums, weights, apart, pairs.add(group * PAIRS), stride);
            for (r, sums) in sums.into_iter().enumerate() {
                let head = head.wrapping_add(r * apart);
                let scales = weights.wrapping_add(r * apart + F::BYTES);
                V::prefetch(scales.wrapping_add(AHEAD));
                let scale = F::Scales::scale::<V>(head, scales, PART);
                let minimum = F::Scales::minimum::<V>(head, scales, PART);
                for (m, sum) in sums.into_iter().enumerate() {
                    let x_scale = V::splat(*x_scales.add(m * stride + group));
                    let mut of_group = V::from_i32(sum).mul(scale);
                    if F::Scales::MINIMA {
                        of_group = minimum.mul_add(V::splat(x_sum(m) as f32), of_group);
                    }
                    let at = self.sums.add((r * M + m) * LANES);
                    of_group.mul_add(x_scale, V::load(at)).store(at);
                }
            }
        }
    }
}

//! Some rows of rounded activations against some blocks of integers.

use std::marker::PhantomData;

use super::integers::{Group, bits};
use super::rounded::Rounded;
use super::scales::Scales;
use super::tile::{AHEAD, Parts};
use super::vector::{Tile, Vector};
use super::{LANES, Product};

/// Most vectors of sums of a tile.
const SUMS: usize = 16;

/// Words of scratch that a product takes.
pub(super) const SUM_WORDS: usize = 2 * SUMS * LANES;

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
    /// bytes, sums would straddle cache lines. Behind them as many i32, where halves of a group have
    /// [integers](Scales::INTEGERS): the sums of the first.
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
            each!(r in R, {
                each!(m in M, {
                    let sum = if self.first == 0 { V::splat(0.0) } else { V::load(y_of(r, m)) };
                    sum.store(sum_of(r, m));
                });
            });
            let apart = step * self.block_bytes;
            let mut head = self.weights.add(block * self.block_bytes);
            let mut group = 0;
            while group < self.groups {
                let together = F::Scales::TOGETHER.min(self.groups - group);
                for i in 0..together {
                    let weights = head.add(F::Scales::HEAD).add(i * (F::BYTES + F::Scales::BYTES));
                    let at = At { group: self.first + group + i, head, weights, apart };
                    if F::Scales::INTEGERS {
                        self.add_whole::<V, R, M>(at);
                        continue;
                    }
                    self.add_part::<V, R, M, 0>(at);
                    if const { F::Scales::PARTS == 2 } {
                        self.add_part::<V, R, M, 1>(at);
                    }
                }
                head = head.add(block_bytes::<V, F>(together));
                group += together;
            }
            each!(r in R, {
                each!(m in M, { V::load(sum_of(r, m)).store(y_of(r, m)) });
            });
        }
    }

    /// Row by row, in what one row has anyhow: single blocks with several rows would be a third of the tiles that
    /// are compiled. Measured: a run of 31 blocks has 0.81 to 0.95 times the speed so; those of a matrix have a multiple
    /// of four, all but the last.
    #[inline(always)]
    unsafe fn rest<const M: usize>(&self, block: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            if const { M == 1 } {
                for block in block..self.blocks {
                    Tile::<V>::multiply::<1, 1>(self, block, 1);
                }
            } else if block < self.blocks {
                let rest = Parts::<V>::part(*self, block, self.blocks - block);
                for row in 0..M {
                    V::run_one(&Parts::<V>::rows_from(rest, row));
                }
            }
        }
    }
}

/// A group of a tile: of the first block it has `weights`, and `head` before it.
#[derive(Clone, Copy)]
struct At {
    group: usize,
    head: *const u8,
    weights: *const u8,
    /// Bytes between blocks.
    apart: usize,
}

impl<F> IntegerTile<F> {
    /// The sum of part `PART` of a group of row `m` of activations.
    ///
    /// # Safety
    ///
    /// As for [`Tile::multiply`].
    #[inline(always)]
    unsafe fn x_sum<V: Vector, const PART: usize>(&self, group: usize, m: usize) -> i32
    where
        F: Group<V>,
    {
        let (_, _, x_sums) = self.x.parts();
        // SAFETY: the caller's promise.
        let [first, second] =
            unsafe { *x_sums.byte_add(m * self.x.stride() * size_of::<u32>()).add(group) };
        match (F::Scales::PARTS, PART) {
            (1, _) => first.wrapping_add(second),
            (_, 0) => first,
            _ => second,
        }
    }

    /// The products of part `PART` of a group.
    ///
    /// # Safety
    ///
    /// As for [`Tile::multiply`].
    #[inline(always)]
    unsafe fn products<V: Vector, const R: usize, const M: usize, const PART: usize>(
        &self,
        at: At,
    ) -> [[V::Integers; M]; R]
    where
        F: Group<V>,
    {
        let (words, ..) = self.x.parts();
        // SAFETY: the caller's promise.
        unsafe {
            let mut sums = [[V::splat_i32(0); M]; R];
            if const { F::OFFSET != 0 } {
                each!(m in M, {
                    let x_sum = self.x_sum::<V, PART>(at.group, m);
                    let start = V::splat_i32(x_sum.wrapping_mul(-F::OFFSET));
                    each!(r in R, { sums[r][m] = start });
                });
            }
            let x = words.add(at.group * F::WORDS);
            F::add::<R, M, PART>(&mut sums, at.weights, at.apart, x, self.x.stride());
            sums
        }
    }

    /// Adds the products of part `PART` of a group to the sums.
    ///
    /// # Safety
    ///
    /// As for [`Tile::multiply`].
    #[inline(always)]
    unsafe fn add_part<V: Vector, const R: usize, const M: usize, const PART: usize>(&self, at: At)
    where
        F: Group<V>,
    {
        // SAFETY: the caller's promise.
        unsafe {
            let products = self.products::<V, R, M, PART>(at);
            each!(r in R, {
                let (head, scales) = at.scales::<V, F, M>(r);
                let scale = F::Scales::scale::<V>(head, scales, PART);
                let minimum = F::Scales::minimum::<V>(head, scales, PART);
                each!(m in M, {
                    let mut of_group = V::from_i32(products[r][m]).mul(scale);
                    if F::Scales::MINIMA {
                        let x_sum = self.x_sum::<V, PART>(at.group, m);
                        of_group = minimum.mul_add(V::splat(x_sum as f32), of_group);
                    }
                    self.add::<V>(at.group, m, r * M + m, of_group);
                });
            });
        }
    }

    /// Adds the products of a group to the sums, those of each half times their integers.
    ///
    /// # Safety
    ///
    /// As for [`Tile::multiply`].
    #[inline(always)]
    unsafe fn add_whole<V: Vector, const R: usize, const M: usize>(&self, at: At)
    where
        F: Group<V>,
    {
        // SAFETY: the caller's promise.
        unsafe {
            let first_of = |i: usize| self.sums.add((SUMS + i) * LANES).cast::<u8>();
            let first = self.products::<V, R, M, 0>(at);
            each!(r in R, {
                let (head, scales) = at.scales::<V, F, M>(r);
                let integer = F::Scales::integer::<V>(head, scales, 0);
                each!(m in M, {
                    V::store_i32(V::multiply_i32(first[r][m], integer), first_of(r * M + m));
                });
            });
            let second = self.products::<V, R, M, 1>(at);
            each!(r in R, {
                let (head, scales) = at.scales::<V, F, M>(r);
                let integer = F::Scales::integer::<V>(head, scales, 1);
                let scale = F::Scales::scale::<V>(head, scales, 0);
                each!(m in M, {
                    let product = V::multiply_i32(second[r][m], integer);
                    let product = V::add_i32(V::load_i32(first_of(r * M + m)), product);
                    self.add::<V>(at.group, m, r * M + m, V::from_i32(product).mul(scale));
                });
            });
        }
    }

    /// Adds to sum `i` what a group of row `m` is, times the scale of the activations.
    ///
    /// # Safety
    ///
    /// As for [`Tile::multiply`].
    #[inline(always)]
    unsafe fn add<V: Vector>(&self, group: usize, m: usize, i: usize, of_group: V) {
        let (_, x_scales, _) = self.x.parts();
        // SAFETY: the caller's promise.
        unsafe {
            let x_scale = V::splat(*x_scales.add(m * self.x.stride() + group));
            let sum = self.sums.add(i * LANES);
            of_group.mul_add(x_scale, V::load(sum)).store(sum);
        }
    }
}

impl At {
    /// The head and the scales of the group of block `r`, for `M` rows; more of them are prefetched.
    ///
    /// # Safety
    ///
    /// As for [`Vector`].
    #[inline(always)]
    unsafe fn scales<V: Vector, F: Group<V>, const M: usize>(
        self,
        r: usize,
    ) -> (*const u8, *const u8) {
        let scales = self.weights.wrapping_add(r * self.apart + F::BYTES);
        // SAFETY: a prefetch never faults.
        unsafe { V::prefetch_weights(scales.wrapping_add(AHEAD), bits(F::BYTES), M) };
        (self.head.wrapping_add(r * self.apart), scales)
    }
}

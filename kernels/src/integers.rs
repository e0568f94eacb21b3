//! Weights that are integers with scales: each group of columns is one sum of integers.
//!
//! Activations are rounded to 16 bits, with a scale for each group of a row: their step is a
//! 65278th of the group's range, a hundredth of that of int8 weights. Products of pairs are then
//! exact, two columns of them to an instruction. A row is rounded once, by whoever calls, and not by
//! every product with some of the blocks: that took a twentieth of a prompt.

use std::marker::PhantomData;

use super::tile::{AHEAD, Parts, STEP};
use super::vector::{Job, Tile, Vector};
use super::{LANES, Product};
use crate::format::{GROUP, SCALES};

/// What the largest activation of a group becomes: two bytes of 127, as some kernels multiply each
/// byte by itself, with its sign.
pub const LARGEST_ACTIVATION: f32 = (127 * 256 + 127) as f32;

/// Pairs of columns of a group, and of [`STEP`] columns.
pub(super) const PAIRS: usize = GROUP / 2;
const STEP_PAIRS: usize = STEP / 2;

/// Most vectors of sums of a tile.
const SUMS: usize = 16;

/// Words of scratch that a product takes.
pub(super) const SUM_WORDS: usize = SUMS * LANES;

/// How activations are rounded, for the weights that they meet.
pub(super) trait Rounding: 'static {
    /// What is stored is the weight plus this.
    const OFFSET: i32;
    /// A group in the order in which it meets the weights. Integers are in the low halves.
    ///
    /// # Safety
    ///
    /// The CPU has the instructions of the implementation.
    unsafe fn arranged(integers: &[u32; GROUP]) -> [u32; PAIRS];
}

/// A stored format as types see it; [`Format`](super::Format) is its value. A group is arranged in
/// pairs: the columns that meet those of [`pairs`](Self::pairs), the first in the low half.
pub(super) trait Integer: Rounding {
    /// Bytes of the weights of a group of a block.
    const GROUP_BYTES: usize;

    /// Pair `i` of the group that starts at `group`; `i` is a constant after inlining.
    ///
    /// # Safety
    ///
    /// As for [`Vector`].
    unsafe fn pairs<V: Vector>(group: *const u8, i: usize) -> V::Integers;
}

/// How a group of columns is multiplied.
pub(super) trait Group<V: Vector>: Rounding {
    /// Bytes of the weights of a group of a block; its scales lie behind them.
    const BYTES: usize;

    /// Adds the group's products of `M` rows, `stride` apart at `x`, with `R` blocks, `apart` bytes
    /// apart at `weights`.
    ///
    /// # Safety
    ///
    /// As for [`Vector`].
    unsafe fn add<const R: usize, const M: usize>(
        sums: &mut [[V::Integers; M]; R],
        weights: *const u8,
        apart: usize,
        x: *const u32,
        stride: usize,
    );
}

impl<V: Vector, F: Integer> Group<V> for F {
    const BYTES: usize = F::GROUP_BYTES;

    #[inline(always)]
    unsafe fn add<const R: usize, const M: usize>(
        sums: &mut [[V::Integers; M]; R],
        weights: *const u8,
        apart: usize,
        x: *const u32,
        stride: usize,
    ) {
        // SAFETY: the caller's promise; a prefetch never faults.
        unsafe {
            unroll!(S, {
                unroll!(I, {
                    let pair = S * STEP_PAIRS + I;
                    let mut pairs = [V::splat_i32(0); R];
                    for (r, pairs) in pairs.iter_mut().enumerate() {
                        let weights = weights.wrapping_add(r * apart);
                        // Each line of the group once, while the pairs go by.
                        let here = pair * F::GROUP_BYTES / PAIRS;
                        if here % LINE < F::GROUP_BYTES / PAIRS {
                            V::prefetch(weights.wrapping_add(here / LINE * LINE + AHEAD));
                        }
                        *pairs = F::pairs::<V>(weights, pair);
                    }
                    for m in 0..M {
                        let x = V::splat_i32(x.add(m * stride + pair).read() as i32);
                        for (sums, pairs) in sums.iter_mut().zip(pairs) {
                            sums[m] = V::add_products(sums[m], pairs, x);
                        }
                    }
                    for sum in sums.as_flattened_mut() {
                        *sum = V::pin_i32(*sum);
                    }
                }, 0 1 2 3);
            }, 0 1 2 3);
        }
    }
}

pub(super) struct Int8;
pub(super) struct Int6;
pub(super) struct Int4;

/// Bytes of one word of every lane.
pub(super) const WORD: usize = LANES * size_of::<u32>();

/// Bytes of a line of the caches.
const LINE: usize = 64;

/// Each column meets the next one.
#[inline(always)]
fn neighbours(integers: &[u32; GROUP]) -> [u32; PAIRS] {
    std::array::from_fn(|i| integers[2 * i] & 0xffff | integers[2 * i + 1] << 16)
}

impl Rounding for Int8 {
    const OFFSET: i32 = 0;

    #[inline(always)]
    unsafe fn arranged(integers: &[u32; GROUP]) -> [u32; PAIRS] {
        neighbours(integers)
    }
}

impl Integer for Int8 {
    const GROUP_BYTES: usize = GROUP * LANES;

    #[inline(always)]
    unsafe fn pairs<V: Vector>(group: *const u8, i: usize) -> V::Integers {
        // SAFETY: as the caller promises.
        unsafe { V::pairs_i8(group.add(i * 2 * LANES)) }
    }
}

impl Rounding for Int6 {
    const OFFSET: i32 = 32;

    #[inline(always)]
    unsafe fn arranged(integers: &[u32; GROUP]) -> [u32; PAIRS] {
        neighbours(integers)
    }
}

impl Integer for Int6 {
    const GROUP_BYTES: usize = 6 * WORD;

    /// Twelve pairs as they lie, and four of what the words have left.
    #[inline(always)]
    unsafe fn pairs<V: Vector>(group: *const u8, i: usize) -> V::Integers {
        // SAFETY: as the caller promises.
        unsafe {
            if i < 12 {
                return V::bits(group.add(i / 2 * WORD), 6 * (i % 2), 0x003f_003f);
            }
            let rest = i - 12;
            let low = V::bits(group.add(rest * WORD), 12, 0x000f_000f);
            let high = V::bits(group.add((4 + rest / 2) * WORD), 8 + 2 * (rest % 2), 0x0030_0030);
            V::or(low, high)
        }
    }
}

impl Rounding for Int4 {
    const OFFSET: i32 = 8;

    /// Column `i` of each eight meets column `i + 4`: one shift and one mask take both nibbles.
    #[inline(always)]
    unsafe fn arranged(integers: &[u32; GROUP]) -> [u32; PAIRS] {
        std::array::from_fn(|i| {
            let first = i / STEP_PAIRS * STEP + i % STEP_PAIRS;
            integers[first] & 0xffff | integers[first + STEP_PAIRS] << 16
        })
    }
}

impl Integer for Int4 {
    const GROUP_BYTES: usize = 4 * WORD;

    #[inline(always)]
    unsafe fn pairs<V: Vector>(group: *const u8, i: usize) -> V::Integers {
        // SAFETY: as the caller promises.
        unsafe { V::bits(group.add(i / STEP_PAIRS * WORD), 4 * (i % STEP_PAIRS), 0x000f_000f) }
    }
}

/// Bytes of a row of `columns` activations as products with integers take it, of which
/// [`round_row`](crate::round_row) makes them. Rows begin at multiples of 64 bytes where the first one
/// does.
pub fn rounded_bytes(columns: usize) -> usize {
    Rounded::words(columns.div_ceil(GROUP)) * size_of::<u32>()
}

/// Rows of activations as integers with scales: [`PAIRS`] of i16 for each group, as
/// [`Rounding::arranged`] has them, then the groups' scales, f32, then what each group's sum starts from,
/// i32, for what is stored with an offset.
#[derive(Clone, Copy)]
pub(super) struct Rounded {
    at: *mut u32,
    groups: usize,
}

impl Rounded {
    /// Rows of `columns` at `at`.
    pub fn new(at: *mut u8, columns: usize) -> Self {
        Self { at: at.cast(), groups: columns.div_ceil(GROUP) }
    }

    /// Words of a row: a line more than there are, or rows would compete for the same sets of the L1
    /// cache.
    fn words(groups: usize) -> usize {
        const LINE_WORDS: usize = LINE / size_of::<u32>();
        (groups * (PAIRS + 2)).next_multiple_of(LINE_WORDS) + LINE_WORDS
    }

    fn stride(self) -> usize {
        Self::words(self.groups)
    }

    /// The pairs, scales and starts of the first row.
    fn parts(self) -> (*mut u32, *mut f32, *mut i32) {
        let scales = self.at.wrapping_add(self.groups * PAIRS);
        (self.at, scales.cast(), scales.wrapping_add(self.groups).cast())
    }
}

/// Rounds a row of `columns` f32 at `x`.
pub(super) struct Round<F> {
    pub x: *const f32,
    pub columns: usize,
    pub to: Rounded,
    pub format: PhantomData<F>,
}

impl<V: Vector, F: Rounding> Job<V> for Round<F> {
    #[inline(always)]
    unsafe fn run(&self) {
        let Self { x, columns, to, .. } = *self;
        let (pairs, scales, starts) = to.parts();
        // SAFETY: the caller's promise covers `columns` and what `Rounded` states.
        unsafe {
            let x = std::slice::from_raw_parts(x, columns);
            let pairs = std::slice::from_raw_parts_mut(pairs.cast::<[u32; PAIRS]>(), to.groups);
            let scales = std::slice::from_raw_parts_mut(scales, to.groups);
            let starts = std::slice::from_raw_parts_mut(starts, to.groups);
            let (whole, rest) = x.as_chunks::<GROUP>();
            for group in 0..whole.len() {
                // Or LLVM takes sixteen groups at once, with gathers: ten times slower.
                let group = std::hint::black_box(group);
                (scales[group], starts[group]) = round::<F>(&whole[group], &mut pairs[group]);
            }
            if !rest.is_empty() {
                let mut padded = [0.0; GROUP];
                padded[..rest.len()].copy_from_slice(rest);
                let group = whole.len();
                (scales[group], starts[group]) = round::<F>(&padded, &mut pairs[group]);
            }
        }
    }
}

/// Rounds a group; returns its scale and what its sums start from. The scale of a group with a
/// value that is not finite is not finite either.
///
/// # Safety
///
/// As for [`Rounding::arranged`].
#[inline(always)]
pub(super) unsafe fn round<F: Rounding>(x: &[f32; GROUP], pairs: &mut [u32; PAIRS]) -> (f32, i32) {
    /// Added to a small number, it leaves the nearest integer in the low bits.
    const NEAREST: f32 = 1.5 * (1 << 23) as f32;
    // As integers, whose order is that of magnitudes, and in which NaN is the largest.
    let mut largest = 0;
    for x in x {
        largest = largest.max(x.to_bits() & i32::MAX as u32);
    }
    let largest = f32::from_bits(largest);
    // Below, the inverse would overflow; such a group is nothing beside any other.
    let inverse = if largest < 1e-30 { 0.0 } else { LARGEST_ACTIVATION / largest };
    let mut integers = [0; GROUP];
    let mut sum = 0u32;
    for (integer, x) in integers.iter_mut().zip(x) {
        *integer = (x * inverse + NEAREST).to_bits();
        sum = sum.wrapping_add(*integer);
    }
    // SAFETY: the caller's promise.
    *pairs = unsafe { F::arranged(&integers) };
    let sum = sum.wrapping_sub(NEAREST.to_bits().wrapping_mul(GROUP as u32)) as i32;
    // Activations that are not finite are any integers, beside a scale that is not finite.
    (largest / LARGEST_ACTIVATION, sum.wrapping_mul(-F::OFFSET))
}

/// Rows of `x` times a run of blocks.
pub(super) struct IntegerTile<F> {
    weights: *const u8,
    block_bytes: usize,
    x: Rounded,
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

impl<F> IntegerTile<F> {
    /// The whole product, with [`SUM_WORDS`] of scratch.
    pub fn new<V: Vector>(p: &Product, sums: *mut f32) -> Self
    where
        F: Group<V>,
    {
        let x = Rounded::new(p.x.cast_mut(), p.columns);
        Self {
            weights: p.weights,
            block_bytes: x.groups * (F::BYTES + SCALES),
            x,
            y: p.y,
            y_stride: p.stride,
            blocks: p.blocks,
            sums,
            format: PhantomData,
        }
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
        unsafe {
            let x = Rounded { at: self.x.at.add(first * self.x.stride()), ..self.x };
            Self { x, y: self.y.add(first * self.y_stride), ..self }
        }
    }
}

impl<V: Vector, F: Group<V>> Tile<V> for IntegerTile<F> {
    fn blocks(&self) -> usize {
        self.blocks
    }

    #[inline(always)]
    unsafe fn multiply<const R: usize, const M: usize>(&self, block: usize, step: usize) {
        let (groups, stride) = (self.x.groups, self.x.stride());
        let (pairs, x_scales, x_starts) = self.x.parts();
        // SAFETY: the caller's promise; a prefetch never faults.
        unsafe {
            const { assert!(R * M <= SUMS) };
            let sum_of = |r: usize, m: usize| self.sums.add((r * M + m) * LANES);
            for sum in 0..R * M {
                V::splat(0.0).store(sum_of(0, sum));
            }
            let weights = self.weights.add(block * self.block_bytes);
            for group in 0..groups {
                let mut group_sums = [[V::splat_i32(0); M]; R];
                if F::OFFSET != 0 {
                    for m in 0..M {
                        let start = V::splat_i32(*x_starts.add(m * stride + group));
                        for sums in &mut group_sums {
                            sums[m] = start;
                        }
                    }
                }
                let weights = weights.add(group * (F::BYTES + SCALES));
                let x = pairs.add(group * PAIRS);
                let apart = step * self.block_bytes;
                F::add(&mut group_sums, weights, apart, x, stride);
                for (r, group_sums) in group_sums.into_iter().enumerate() {
                    let scales = weights.wrapping_add(r * apart + F::BYTES);
                    V::prefetch(scales.wrapping_add(AHEAD));
                    let scale = V::load_f16(scales);
                    for (m, group_sum) in group_sums.into_iter().enumerate() {
                        let x_scale = V::splat(*x_scales.add(m * stride + group));
                        let group_sum = V::from_i32(group_sum).mul(scale);
                        let sum = V::load(sum_of(r, m));
                        group_sum.mul_add(x_scale, sum).store(sum_of(r, m));
                    }
                }
            }
            for r in 0..R {
                for m in 0..M {
                    let y = self.y.add(m * self.y_stride + (block + r * step) * LANES);
                    V::load(sum_of(r, m)).store(y);
                }
            }
        }
    }
}

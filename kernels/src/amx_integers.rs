//! Integers with scales by tiles, for many rows; not those that are multiplied with
//! [integers](super::scales::Scales::INTEGERS) first, which bytes do not hold.
//!
//! Activations are two planes of bytes, or one where they have eight bits, whose products with the bytes of weights
//! are as many tiles of exact sums for each group: the same integers as without tiles, and scaled in the same order.
//! So a row has the bits here that it has without tiles, among fewer.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::amx::{self, ROW, ROWS, TILE};
use super::avx512::Avx512;
use super::integer_tile::block_bytes;
use super::integers::{Grouped, Integer, LINE, PAIRS, Rounding};
use super::rounded::Rounded;
use super::scales::Scales;
use super::scratch::with_scratch;
use super::tile::AHEAD;
use super::vector::Vector;
use super::walk::clear_padding;
use super::{LANES, Product};
use crate::format::GROUP;

type V = Avx512<true>;

/// Rows from which on tiles are the faster way: what they multiply goes through memory to be scaled. Measured:
/// 0.96 and 1.04 times the speed with 16 rows (int8, int4), 1.3 times with 32, 1.5 with 256; beside activations of one
/// byte 0.83 with 16 and 24, 1.0 with 32, 1.2 with 64, 1.3 to 1.45 with 256.
pub(super) const FROM: usize = 2 * ROWS;

/// `$body` for each row of a tile, whose number `$i` is a constant: a loop would have the sums in memory.
macro_rules! each_row {
    ($i:ident, $body:block) => {
        unroll!($i, $body, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
}

/// Groups that are decoded together, of two blocks: 20 KB, which rows meet from the L1 cache.
const PIECE: usize = 16;

/// How many steps later than they are written products are scaled, for until they have reached the cache they
/// cannot be read; and how many are kept.
const LATER: usize = 1;
const RING: usize = LATER + 1;

/// Bytes of the integers of a group, and of what is decoded: the integers, then for each part of the group
/// scales and minima.
const INTEGERS: usize = GROUP * LANES;
const fn decoded_bytes<S: Scales>() -> usize {
    INTEGERS + S::PARTS * 2 * ROW
}

/// Activations of a group in two planes of bytes, the high ones and then the low ones, which count with their
/// sign, or in one: column by column as the weights lie that [`decode`] writes.
pub(super) struct Planes<I, const PLANES: usize>(PhantomData<I>);

impl<I: Rounding, const PLANES: usize> Rounding for Planes<I, PLANES> {
    const WORDS: usize = PLANES * PAIRS / 2;

    #[inline(always)]
    unsafe fn arranged(integers: &[u32; GROUP]) -> [u32; PAIRS] {
        const SIGNS: u32 = 0x8000_8000;
        const EVEN: u32 = 0x00ff_00ff;
        // SAFETY: the caller's promise.
        let pairs = unsafe { I::arranged(integers) };
        let mut planes = [0; PAIRS];
        for (i, [first, second]) in pairs.as_chunks::<2>().0.iter().enumerate() {
            if PLANES == 2 {
                // A low byte counts as negative from 128 on: then the high byte is one more. Each half by itself.
                let up = |pair: &u32| ((pair & !SIGNS) + 0x0080_0080) ^ (pair & SIGNS);
                planes[i] = up(first) >> 8 & EVEN | up(second) & !EVEN;
            }
            planes[(PLANES - 1) * PAIRS / 2 + i] = first & EVEN | second << 8 & !EVEN;
        }
        planes
    }
}

/// Writes a group's integers as bytes, four columns of each lane together: two pairs, first the first columns
/// of both; and behind them its scales.
///
/// # Safety
///
/// As for [`Integer`] and [`Scales`]; there are [`decoded_bytes`] at `to`.
#[inline(always)]
unsafe fn decode<I: Integer, S: Scales>(head: *const u8, group: *const u8, to: *mut u8) {
    // SAFETY: the caller's promise; a prefetch never faults.
    unsafe {
        for line in (0..I::GROUP_BYTES + S::BYTES).step_by(LINE) {
            V::prefetch(group.wrapping_add(line + AHEAD));
        }
        let low = _mm512_set1_epi16(0xff);
        unroll!(WORD, {
            let mut pairs = [I::pairs::<V>(group, 2 * WORD), I::pairs::<V>(group, 2 * WORD + 1)];
            if !S::MINIMA && I::MIDDLE != 0 {
                let middle = _mm512_set1_epi16(I::MIDDLE as i16);
                for pairs in &mut pairs {
                    *pairs = _mm512_sub_epi16(*pairs, middle);
                }
            }
            let second = _mm512_slli_epi16::<8>(pairs[1]);
            // (pairs[0] & low) | second
            let bytes = _mm512_ternarylogic_epi64::<0xea>(pairs[0], low, second);
            _mm512_storeu_si512(to.add(WORD * ROW).cast(), bytes);
        });
        let beside = group.add(I::GROUP_BYTES);
        let scales = to.add(INTEGERS).cast::<f32>();
        for part in 0..S::PARTS {
            S::scale::<V>(head, beside, part).store(scales.add(2 * part * LANES));
            S::minimum::<V>(head, beside, part).store(scales.add((2 * part + 1) * LANES));
        }
    }
}

/// How the rows of a product are cut.
struct Plan<'a> {
    p: &'a Product,
    x: Rounded,
    /// Tiles of rows.
    tiles: usize,
}

impl<'a> Plan<'a> {
    fn new(p: &'a Product) -> Self {
        let x = Rounded::new(p.x.cast_mut(), p.columns);
        Self { p, x, tiles: p.used.div_ceil(ROWS) }
    }

    /// The first row of a tile; the last tile ends with the last row, and may have some of the one before.
    fn first(&self, tile: usize) -> usize {
        (tile * ROWS).min(self.p.used - ROWS)
    }

    /// Bytes of a group's numbers of a tile of rows: its scales, and the sums of each part.
    fn numbers<S: Scales>() -> usize {
        (1 + S::PARTS) * ROW
    }

    /// Bytes of scratch.
    fn bytes<S: Scales, const PLANES: usize>(&self) -> usize {
        let numbers = self.tiles * self.x.groups() * Self::numbers::<S>();
        RING * PLANES * TILE + 2 * PIECE * decoded_bytes::<S>() + 2 * self.tiles * TILE + numbers
    }
}

/// The kernel for integers with scales, for at least [`FROM`] rows.
///
/// # Safety
///
/// As for [`Kernel`](super::Kernel), with tiles; as many rows are used, and activations are so many [`Planes`].
pub(super) unsafe fn many<I: Integer, S: Scales, const PLANES: usize>(p: &Product) {
    const { assert!(!S::INTEGERS && matches!(PLANES, 1 | 2)) };
    let plan = Plan::new(p);
    // SAFETY: the caller's promise; there is as much scratch.
    unsafe {
        clear_padding(p);
        with_scratch(plan.bytes::<S, PLANES>() / size_of::<f32>(), |scratch| {
            amx::with_tiles(ROWS, GROUP / S::PARTS, || run::<I, S, PLANES>(&plan, scratch.cast()));
        });
    }
}

/// The loops: all rows meet a piece of two blocks after the other.
///
/// # Safety
///
/// As for [`many`]; in [`amx::with_tiles`], and the scratch has [`Plan::bytes`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn run<I: Integer, S: Scales, const PLANES: usize>(plan: &Plan<'_>, scratch: *mut u8) {
    let Plan { p, x, tiles, .. } = *plan;
    let groups = x.groups();
    let group_bytes = I::GROUP_BYTES + S::BYTES;
    let together_bytes = S::HEAD + S::TOGETHER * group_bytes;
    // SAFETY: the caller's promise: the scratch has all of these.
    unsafe {
        let products = scratch;
        let decoded = products.add(RING * PLANES * TILE);
        let sums = decoded.add(2 * PIECE * decoded_bytes::<S>());
        let numbers = sums.add(2 * tiles * TILE);
        for tile in 0..tiles {
            gather::<S>(plan, tile, numbers);
        }
        for pair in (0..p.blocks).step_by(2) {
            let blocks = 2.min(p.blocks - pair);
            for first in (0..groups).step_by(PIECE) {
                let end = groups.min(first + PIECE);
                for i in 0..blocks {
                    let block = p.weights.add((pair + i) * block_bytes::<V, Grouped<I, S>>(groups));
                    for group in first..end {
                        let head = block.add(group / S::TOGETHER * together_bytes);
                        let at = head.add(S::HEAD + group % S::TOGETHER * group_bytes);
                        let to = i * PIECE + group - first;
                        decode::<I, S>(head, at, decoded.add(to * decoded_bytes::<S>()));
                    }
                }
                for tile in 0..tiles {
                    let (pairs, ..) = x.rows_from(plan.first(tile)).parts();
                    let of_tile = tile * groups + first;
                    for i in 0..blocks {
                        let meet = Meet::<S, PLANES> {
                            weights: decoded.add(i * PIECE * decoded_bytes::<S>()),
                            x: pairs.cast::<u8>().add(first * PLANES * GROUP),
                            x_stride: x.stride() * size_of::<u32>(),
                            numbers: numbers.add(of_tile * Plan::numbers::<S>()).cast(),
                            products,
                            sums: sums.add((i * tiles + tile) * TILE).cast(),
                            scales: PhantomData,
                        };
                        meet.piece(end - first, first == 0);
                        if end == groups {
                            for row in 0..ROWS {
                                let y = p.y.add((plan.first(tile) + row) * p.stride);
                                let sum = V::load(meet.sums.add(row * LANES));
                                sum.store(y.add((pair + i) * LANES));
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Writes what the groups of a tile of rows are scaled with: of each group the scales of the rows, then, as
/// f32, the sums of the rows in each part of it.
///
/// # Safety
///
/// As for [`run`].
#[inline(always)]
unsafe fn gather<S: Scales>(plan: &Plan<'_>, tile: usize, numbers: *mut u8) {
    let x = plan.x;
    // SAFETY: the caller's promise.
    unsafe {
        let first = x.rows_from(plan.first(tile));
        for group in 0..x.groups() {
            let at = (tile * x.groups() + group) * Plan::numbers::<S>();
            let numbers = numbers.add(at).cast::<f32>();
            for row in 0..ROWS {
                let (_, scales, sums) = first.rows_from(row).parts();
                *numbers.add(row) = *scales.add(group);
                let sums = *sums.add(group);
                if S::PARTS == 1 {
                    *numbers.add(LANES + row) = sums[0].wrapping_add(sums[1]) as f32;
                } else {
                    *numbers.add(LANES + row) = sums[0] as f32;
                    *numbers.add(2 * LANES + row) = sums[1] as f32;
                }
            }
        }
    }
}

/// A tile of rows and a piece of a block.
struct Meet<S, const PLANES: usize> {
    /// Decoded groups.
    weights: *const u8,
    /// The planes of the groups, rows so many bytes apart.
    x: *const u8,
    x_stride: usize,
    /// What [`gather`] wrote of them.
    numbers: *const f32,
    /// `[RING, PLANES]` tiles: the products of some parts of groups, of high bytes and of low ones.
    products: *mut u8,
    /// `[ROWS, 16]`
    sums: *mut f32,
    scales: PhantomData<S>,
}

impl<S: Scales, const PLANES: usize> Meet<S, PLANES> {
    /// Adds the products of the piece to the sums, or sets these to them.
    ///
    /// # Safety
    ///
    /// As for [`run`].
    #[inline(always)]
    unsafe fn piece(&self, groups: usize, first: bool) {
        let steps = groups * S::PARTS;
        // SAFETY: the caller's promise.
        unsafe {
            let mut sums = [V::splat(0.0); ROWS];
            if !first {
                each_row!(I, { sums[I] = V::load(self.sums.add(I * LANES)) });
            }
            for step in 0..steps + LATER {
                if step < steps {
                    match step % 2 {
                        0 => self.multiply::<0, 1>(step),
                        _ => self.multiply::<2, 3>(step),
                    }
                }
                if step >= LATER {
                    self.scale(step - LATER, &mut sums);
                }
            }
            each_row!(I, { sums[I].store(self.sums.add(I * LANES)) });
        }
    }

    /// Where the products of a part of a group are kept.
    fn products(&self, step: usize) -> *mut u8 {
        self.products.wrapping_add(step % RING * PLANES * TILE)
    }

    /// The products of a part of a group, by tiles `HIGH` and `LOW`.
    ///
    /// # Safety
    ///
    /// As for [`run`].
    #[inline(always)]
    unsafe fn multiply<const HIGH: usize, const LOW: usize>(&self, step: usize) {
        let (group, part) = (step / S::PARTS, step % S::PARTS);
        let plane = GROUP / S::PARTS;
        // SAFETY: the caller's promise.
        unsafe {
            let weights = self.weights.add(group * decoded_bytes::<S>());
            let x = self.x.add(group * PLANES * GROUP + part * plane);
            let products = self.products(step);
            amx::load::<6>(weights.add(part * INTEGERS / S::PARTS), ROW);
            if PLANES == 2 {
                amx::load::<4>(x, self.x_stride);
            }
            amx::load::<5>(x.add((PLANES - 1) * GROUP), self.x_stride);
            if PLANES == 2 {
                amx::zero::<HIGH>();
                amx::add_i8::<HIGH, 4, 6>();
                amx::store::<HIGH>(products, ROW);
            }
            amx::zero::<LOW>();
            amx::add_i8::<LOW, 5, 6>();
            amx::store::<LOW>(products.add((PLANES - 1) * TILE), ROW);
        }
    }

    /// Adds the products of a part of a group to the sums.
    ///
    /// # Safety
    ///
    /// As for [`run`].
    #[inline(always)]
    unsafe fn scale(&self, step: usize, sums: &mut [V; ROWS]) {
        let (group, part) = (step / S::PARTS, step % S::PARTS);
        // SAFETY: the caller's promise.
        unsafe {
            let weights = self.weights.add(group * decoded_bytes::<S>() + INTEGERS).cast::<f32>();
            let scale = V::load(weights.add(2 * part * LANES));
            let minimum = V::load(weights.add((2 * part + 1) * LANES));
            let numbers = self.numbers.add(group * Plan::numbers::<S>() / size_of::<f32>());
            let products = self.products(step);
            each_row!(I, {
                let row = products.add(I * ROW);
                let mut product = _mm512_loadu_si512(row.add((PLANES - 1) * TILE).cast());
                if PLANES == 2 {
                    let high = _mm512_slli_epi32::<8>(_mm512_loadu_si512(row.cast()));
                    product = _mm512_add_epi32(high, product);
                }
                let mut of_group = V::from_i32(product).mul(scale);
                if S::MINIMA {
                    let x_sum = V::splat(*numbers.add((1 + part) * LANES + I));
                    of_group = minimum.mul_add(x_sum, of_group);
                }
                sums[I] = of_group.mul_add(V::splat(*numbers.add(I)), sums[I]);
            });
        }
    }
}

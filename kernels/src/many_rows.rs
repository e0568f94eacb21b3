//! Many rows meet integers with scales, a dozen at a time, with AVX-512 VNNI: so many sums of integers and of
//! floats have registers, and an instruction takes the activations of a row from memory.
//!
//! Groups are [decoded](super::decoded) first, a few of a few blocks, which all rows meet from the L1 cache.
//! Sums are scaled in the same order as without: a row has the bits here that it has among fewer.

use std::arch::asm;
use std::arch::x86_64::__m512i;
use std::marker::PhantomData;

use super::avx512::Avx512;
use super::decoded::{BLOCKS, Decode, GROUPS, decoded_bytes};
use super::integers::{Integer, PAIRS, WORD};
use super::rounded::Rounded;
use super::scales::Scales;
use super::scratch::with_scratch;
use super::vector::{Job, Vector};
use super::{LANES, Product};

type V = Avx512<true>;

/// Rows of a tile.
pub(super) const ROWS: usize = 12;

/// Rows from which on this is the faster way, for integers that take some work to be taken out of their
/// words. Measured: 1.04 to 1.25 times the speed with 64 rows, 1.13 to 1.46 times with 256; 16 rows would
/// have 0.8 to 1.07 times, and integers of four and eight bits, with any number, 0.66 to 1.07 times.
pub(super) const FROM: usize = 64;

/// The product of rows that are a multiple of [`ROWS`].
///
/// # Safety
///
/// As for [`Kernel`](super::Kernel), with AVX-512 VNNI.
pub(super) unsafe fn multiply<I: Integer, S: Scales>(p: &Product) {
    let x = Rounded::new(p.x.cast_mut(), p.columns);
    let tiles = p.used / ROWS;
    let panel = BLOCKS * GROUPS * decoded_bytes::<S>() / size_of::<f32>();
    let totals = tiles * BLOCKS * ROWS * LANES;
    let numbers = tiles * x.groups() * Meet::<S>::NUMBERS;
    // SAFETY: the caller's promise; there is as much scratch.
    unsafe {
        with_scratch(panel + totals + numbers, |scratch| {
            let totals_at = scratch.add(panel);
            let numbers = totals_at.add(totals);
            V::enter(&Gather::<S> { x, rows: tiles * ROWS, to: numbers, scales: PhantomData });
            for block in (0..p.blocks).step_by(BLOCKS) {
                let blocks = BLOCKS.min(p.blocks - block);
                for first in (0..x.groups()).step_by(GROUPS) {
                    let groups = GROUPS.min(x.groups() - first);
                    V::enter(&Decode::<I, S> {
                        weights: p.weights,
                        groups: x.groups(),
                        blocks: (block, blocks),
                        part: (first, groups),
                        to: scratch.cast(),
                        format: PhantomData,
                    });
                    V::enter(&Meet::<S> {
                        panel: scratch.cast(),
                        blocks,
                        groups: (first, groups),
                        x,
                        tiles,
                        numbers,
                        totals: totals_at,
                        y: p.y.add(block * LANES),
                        y_stride: p.stride,
                        scales: PhantomData,
                    });
                }
            }
        });
    }
}

/// Writes what groups of activations are scaled with: for each tile of rows and group the scales of the rows,
/// then, where weights have minima, their sums in each part of it as f32.
struct Gather<S> {
    x: Rounded,
    rows: usize,
    to: *mut f32,
    scales: PhantomData<S>,
}

impl<S: Scales> Job<V> for Gather<S> {
    #[inline(always)]
    unsafe fn run(&self) {
        let Self { x, rows, to, .. } = *self;
        // SAFETY: the caller's promise.
        unsafe {
            for row in 0..rows {
                let (_, scales, sums) = x.rows_from(row).parts();
                for group in 0..x.groups() {
                    let at = (row / ROWS * x.groups() + group) * Meet::<S>::NUMBERS + row % ROWS;
                    let to = to.add(at);
                    *to = *scales.add(group);
                    if S::MINIMA {
                        let [first, second] = *sums.add(group);
                        if Meet::<S>::PARTS == 1 {
                            *to.add(ROWS) = first.wrapping_add(second) as f32;
                        } else {
                            *to.add(ROWS) = first as f32;
                            *to.add(2 * ROWS) = second as f32;
                        }
                    }
                }
            }
        }
    }
}

/// All rows against what is decoded.
struct Meet<S> {
    /// `[blocks, groups]` of what [`Decode`] writes.
    panel: *const u8,
    blocks: usize,
    /// The first group, and how many.
    groups: (usize, usize),
    x: Rounded,
    tiles: usize,
    /// What [`Gather`] wrote.
    numbers: *const f32,
    /// `[tiles, BLOCKS, ROWS, 16]`: the sums of the groups before. In `y` rows are often powers of two apart,
    /// which compete for the same sets of the L1 cache.
    totals: *mut f32,
    y: *mut f32,
    y_stride: usize,
    scales: PhantomData<S>,
}

impl<S: Scales> Job<V> for Meet<S> {
    #[inline(always)]
    unsafe fn run(&self) {
        // SAFETY: the caller's promise.
        unsafe {
            for tile in 0..self.tiles {
                for block in 0..self.blocks {
                    self.tile(tile, block);
                }
            }
        }
    }
}

impl<S: Scales> Meet<S> {
    /// Parts of a group that is decoded.
    const PARTS: usize = <S::Decoded as Scales>::PARTS;
    /// f32 that [`Gather`] writes for a tile of rows and a group.
    const NUMBERS: usize = ROWS * if S::MINIMA { 1 + Self::PARTS } else { 1 };

    /// Adds the products of a tile of rows with a block.
    ///
    /// # Safety
    ///
    /// As for [`multiply`].
    #[inline(always)]
    unsafe fn tile(&self, tile: usize, block: usize) {
        let (first, groups) = self.groups;
        // SAFETY: the caller's promise.
        unsafe {
            let kept = self.totals.add((tile * BLOCKS + block) * ROWS * LANES);
            let mut totals = [V::splat(0.0); ROWS];
            if first > 0 {
                for (row, total) in totals.iter_mut().enumerate() {
                    *total = V::load(kept.add(row * LANES));
                }
            }
            let (x, ..) = self.x.rows_from(tile * ROWS).parts();
            for group in 0..groups {
                let panel = self.panel.add((block * groups + group) * decoded_bytes::<S>());
                let x = x.cast_const().add((first + group) * PAIRS);
                let at = (tile * self.x.groups() + first + group) * Self::NUMBERS;
                for part in 0..Self::PARTS {
                    self.add_part(&mut totals, panel, x, self.numbers.add(at), part);
                }
            }
            let (to, stride) = match first + groups < self.x.groups() {
                true => (kept, LANES),
                false => {
                    let y = self.y.add(tile * ROWS * self.y_stride + block * LANES);
                    (y, self.y_stride)
                }
            };
            for (row, total) in totals.into_iter().enumerate() {
                total.store(to.add(row * stride));
            }
        }
    }

    /// Adds the products of part `part` of a group: `panel` of the weights, `x` of the first row, and what the rows
    /// are scaled with.
    ///
    /// # Safety
    ///
    /// As for [`multiply`].
    #[inline(always)]
    unsafe fn add_part(
        &self,
        totals: &mut [V; ROWS],
        panel: *const u8,
        x: *const u32,
        numbers: *const f32,
        part: usize,
    ) {
        let stride = self.x.stride() * size_of::<u32>();
        let first = part * PAIRS / Self::PARTS;
        // SAFETY: the caller's promise.
        unsafe {
            let mut sums = [V::splat_i32(0); ROWS];
            unroll!(PAIR, {
                if const { PAIR < PAIRS / Self::PARTS } {
                    let pairs = V::load_i32(panel.add((first + PAIR) * WORD));
                    add_products::<PAIR>(&mut sums, pairs, x.add(first), stride);
                }
            }, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
            let scales = panel.add(PAIRS * WORD).cast::<f32>().add(2 * part * LANES);
            let (scale, minimum) = (V::load(scales), V::load(scales.add(LANES)));
            each!(row in ROWS, {
                let mut of_group = V::from_i32(sums[row]).mul(scale);
                if S::MINIMA {
                    let x_sum = V::splat(*numbers.add((1 + part) * ROWS + row));
                    of_group = minimum.mul_add(x_sum, of_group);
                }
                totals[row] = of_group.mul_add(V::splat(*numbers.add(row)), totals[row]);
            });
        }
    }
}

/// Adds to the sums of each row the products of `pairs` with word `PAIR` of the row, which is `stride` bytes
/// behind that of the row before.
///
/// # Safety
///
/// As for [`multiply`].
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn add_products<const PAIR: usize>(
    sums: &mut [__m512i; ROWS],
    pairs: __m512i,
    x: *const u32,
    stride: usize,
) {
    macro_rules! add {
        ($sum:expr, $x:expr, $behind:literal $(, $stride:expr)?) => {
            asm!(
                concat!("vpdpwssd {0}, {1}, dword ptr [{2} + {3}", $behind, "]{{1to16}}"),
                inout(zmm_reg) $sum, in(zmm_reg) pairs, in(reg) $x, const 4 * PAIR,
                $(in(reg) $stride,)?
                options(readonly, nostack, preserves_flags),
            )
        };
    }
    // Three rows share an address: that of a row each would take more registers than there are.
    for (i, [first, second, third]) in sums.as_chunks_mut::<3>().0.iter_mut().enumerate() {
        let x = x.wrapping_byte_add(3 * i * stride);
        // SAFETY: one instruction, which the CPU has, on registers and a word of the row.
        unsafe {
            add!(*first, x, "");
            add!(*second, x, " + {4}", stride);
            add!(*third, x, " + 2 * {4}", stride);
        }
    }
}

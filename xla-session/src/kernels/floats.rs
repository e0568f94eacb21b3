//! Weights that are floats: widened in registers, multiplied and added in f32.

use std::marker::PhantomData;

use super::tile::{AHEAD, STEP, Tile};
use super::vector::Vector;
use super::{LANES, Product};

/// A stored format as types see it; [`Format`](super::Format) is its value.
pub(super) trait Float: 'static {
    /// Bytes of a weight.
    const BYTES: usize;

    /// Sixteen weights.
    ///
    /// # Safety
    ///
    /// As for [`Vector`].
    unsafe fn column<V: Vector>(at: *const u8) -> V;
}

pub(super) struct F32;
pub(super) struct Bf16;
pub(super) struct F16;

impl Float for F32 {
    const BYTES: usize = 4;

    #[inline(always)]
    unsafe fn column<V: Vector>(at: *const u8) -> V {
        // SAFETY: as the caller promises.
        unsafe { V::load(at.cast()) }
    }
}

impl Float for Bf16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn column<V: Vector>(at: *const u8) -> V {
        // SAFETY: as the caller promises.
        unsafe { V::load_bf16(at) }
    }
}

impl Float for F16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn column<V: Vector>(at: *const u8) -> V {
        // SAFETY: as the caller promises.
        unsafe { V::load_f16(at) }
    }
}

/// Rows of `x` times a run of blocks.
pub(super) struct FloatTile<F> {
    weights: *const u8,
    block_bytes: usize,
    /// The rows' first columns, `x_stride` apart.
    x: *const f32,
    x_stride: usize,
    y: *mut f32,
    y_stride: usize,
    columns: usize,
    blocks: usize,
    format: PhantomData<F>,
}

impl<F> Clone for FloatTile<F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<F> Copy for FloatTile<F> {}

impl<F: Float> FloatTile<F> {
    /// The whole product.
    pub fn new(p: &Product) -> Self {
        Self {
            weights: p.weights,
            block_bytes: p.columns * LANES * F::BYTES,
            x: p.x,
            x_stride: p.columns,
            y: p.y,
            y_stride: p.stride,
            columns: p.columns,
            blocks: p.blocks,
            format: PhantomData,
        }
    }

    /// Adds column `i` behind `weights` and `x` to `sums`.
    #[inline(always)]
    unsafe fn column<V: Vector, const R: usize, const M: usize>(
        &self,
        weights: *const u8,
        x: *const f32,
        i: usize,
        sums: &mut [[V; M]; R],
    ) {
        // SAFETY: as for `multiply`.
        unsafe {
            for (r, sums) in sums.iter_mut().enumerate() {
                let at = weights.add(r * self.block_bytes + i * LANES * F::BYTES);
                let column: V = F::column(at);
                for (m, sum) in sums.iter_mut().enumerate() {
                    *sum = column.mul_add(V::splat(*x.add(m * self.x_stride + i)), *sum);
                }
                for sum in sums {
                    *sum = sum.pin();
                }
            }
        }
    }
}

impl<F: Float> Tile for FloatTile<F> {
    fn blocks(&self) -> usize {
        self.blocks
    }

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
            Self {
                x: self.x.add(first * self.x_stride),
                y: self.y.add(first * self.y_stride),
                ..self
            }
        }
    }

    #[inline(always)]
    unsafe fn multiply<V: Vector, const R: usize, const M: usize>(&self, block: usize) {
        // SAFETY: the caller's promise; a prefetch never faults.
        unsafe {
            let mut sums = [[V::splat(0.0); M]; R];
            let weights = self.weights.add(block * self.block_bytes);
            let steps = self.columns / STEP;
            for step in 0..steps {
                let weights = weights.add(step * STEP * LANES * F::BYTES);
                let x = self.x.add(step * STEP);
                unroll!(I, {
                    if (I * LANES * F::BYTES).is_multiple_of(64) {
                        for r in 0..R {
                            let here = weights.wrapping_add(r * self.block_bytes);
                            V::prefetch(here.wrapping_add(I * LANES * F::BYTES + AHEAD));
                        }
                    }
                    self.column::<V, R, M>(weights, x, I, &mut sums);
                });
            }
            for column in steps * STEP..self.columns {
                self.column::<V, R, M>(weights, self.x, column, &mut sums);
            }
            for (r, sums) in sums.iter().enumerate() {
                for (m, sum) in sums.iter().enumerate() {
                    sum.store(self.y.add(m * self.y_stride + (block + r) * LANES));
                }
            }
        }
    }
}

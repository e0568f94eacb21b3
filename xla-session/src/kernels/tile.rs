//! The innermost loop: some rows of `x` against some blocks of weights, sums in registers.

use super::LANES;
use super::format::{STEP, StoredFormat, in_place};
use super::vector::Vector;

/// Rows of `x` times a run of blocks.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    pub weights: *const u8,
    pub block_bytes: usize,
    pub scales: *const u16,
    /// Scales to a block.
    pub block_scales: usize,
    /// The rows' first columns, `x_stride` apart, prepared for the format ([`super::walk`]).
    pub x: *const f32,
    pub x_stride: usize,
    /// `[rows, groups]`, for nibbles in place: what each group's sum starts from.
    pub start: *const f32,
    pub start_stride: usize,
    pub y: *mut f32,
    pub y_stride: usize,
    /// Padded to whole groups.
    pub columns: usize,
    pub blocks: usize,
    /// Whether to add to `y`.
    pub accumulate: bool,
}

/// Bytes between the weights being read and those being prefetched.
const AHEAD: usize = 1024;

impl Tile {
    /// `R` blocks at a time with `M` rows; the last `blocks % R` one at a time.
    ///
    /// # Safety
    ///
    /// As for [`Vector`], every pointer being valid for the shapes stated.
    #[inline(always)]
    pub unsafe fn run<V: Vector, F: StoredFormat, const R: usize, const M: usize>(&self) {
        let whole = self.blocks - self.blocks % R;
        // SAFETY: the blocks are those of the run.
        unsafe {
            for block in (0..whole).step_by(R) {
                self.blocks_at::<V, F, R, M>(block);
            }
            for block in whole..self.blocks {
                self.blocks_at::<V, F, 1, M>(block);
            }
        }
    }

    #[inline(always)]
    unsafe fn blocks_at<V: Vector, F: StoredFormat, const R: usize, const M: usize>(
        &self,
        block: usize,
    ) {
        // SAFETY: as for `run`; `block..block + R` are blocks of the run.
        unsafe {
            let mut sums = [[V::splat(0.0); M]; R];
            if self.accumulate {
                for (r, sums) in sums.iter_mut().enumerate() {
                    for (m, sum) in sums.iter_mut().enumerate() {
                        *sum = V::load(self.y.add(m * self.y_stride + (block + r) * LANES));
                    }
                }
            }

            let weights = self.weights.add(block * self.block_bytes);
            if F::SCALED {
                let scales = self.scales.add(block * self.block_scales);
                let group_bytes = F::GROUP / STEP * F::STEP_BYTES;
                for group in 0..self.columns / F::GROUP {
                    let mut group_sums = [[V::splat(0.0); M]; R];
                    if const { in_place::<V, F>() } {
                        for m in 0..M {
                            let start = V::splat(*self.start.add(m * self.start_stride + group));
                            for sums in &mut group_sums {
                                sums[m] = start;
                            }
                        }
                    }
                    for step in 0..F::GROUP / STEP {
                        let x = self.x.add(group * F::GROUP + step * STEP);
                        let weights = weights.add(group * group_bytes + step * F::STEP_BYTES);
                        self.step::<V, F, R, M>(weights, x, &mut group_sums);
                    }
                    for r in 0..R {
                        let scale = scales.add(r * self.block_scales + group * LANES);
                        let scale = V::load_f16(scale.cast());
                        for (sum, group_sum) in sums[r].iter_mut().zip(group_sums[r]) {
                            *sum = group_sum.mul_add(scale, *sum);
                        }
                    }
                }
            } else {
                let steps = self.columns / STEP;
                for step in 0..steps {
                    let weights = weights.add(step * F::STEP_BYTES);
                    self.step::<V, F, R, M>(weights, self.x.add(step * STEP), &mut sums);
                }
                for column in steps * STEP..self.columns {
                    let weights = weights.add(column * (F::STEP_BYTES / STEP));
                    self.column::<V, F, R, M>(weights, self.x.add(column), 0, &mut sums);
                }
            }

            for (r, sums) in sums.iter().enumerate() {
                for (m, sum) in sums.iter().enumerate() {
                    sum.store(self.y.add(m * self.y_stride + (block + r) * LANES));
                }
            }
        }
    }

    /// Adds [`STEP`] columns to `sums`.
    #[inline(always)]
    unsafe fn step<V: Vector, F: StoredFormat, const R: usize, const M: usize>(
        &self,
        weights: *const u8,
        x: *const f32,
        sums: &mut [[V; M]; R],
    ) {
        // SAFETY: as for `run`; a prefetch never faults.
        unsafe {
            unroll!(I, {
                if F::FAR && (I * F::STEP_BYTES).is_multiple_of(STEP * 64) {
                    for r in 0..R {
                        let here = weights.wrapping_add(r * self.block_bytes);
                        V::prefetch(here.wrapping_add(I * F::STEP_BYTES / STEP + AHEAD));
                    }
                }
                self.column::<V, F, R, M>(weights, x, I, sums);
            });
        }
    }

    /// Adds column `i` of a step to `sums`.
    #[inline(always)]
    unsafe fn column<V: Vector, F: StoredFormat, const R: usize, const M: usize>(
        &self,
        weights: *const u8,
        x: *const f32,
        i: usize,
        sums: &mut [[V; M]; R],
    ) {
        // SAFETY: as for `run`.
        unsafe {
            for (r, sums) in sums.iter_mut().enumerate() {
                let column: V = F::column(weights.add(r * self.block_bytes), i);
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

//! A product of matrices that are not packed: scores of queries and keys, and mixtures of values.

use crate::vector::Tile;
use std::marker::PhantomData;

use crate::LANES;
use crate::floats::Float;
use crate::tile::STEP;
use crate::vector::Vector;

/// `y[m, n] = sum_k x[m, k] * w[k, n]`, or that added to `y`; `w` is widened from how `F` stores it.
#[derive(Clone, Copy)]
pub(super) struct DenseTile<F> {
    pub x: *const f32,
    pub x_stride: usize,
    pub w: *const u8,
    pub w_stride: usize,
    /// Bytes from `w` to what is read next, and will be in the caches then.
    pub ahead: isize,
    pub y: *mut f32,
    pub y_stride: usize,
    /// Over which `k` runs.
    pub terms: usize,
    /// Of sixteen `n` each.
    pub vectors: usize,
    pub add: bool,
    pub format: PhantomData<F>,
}

impl<F> DenseTile<F> {
    #[inline(always)]
    unsafe fn term<V: Vector, const R: usize, const M: usize>(
        &self,
        w: *const u8,
        step: usize,
        x: *const f32,
        sums: &mut [[V; M]; R],
    ) where
        F: Float<V, Weights = V>,
    {
        // SAFETY: as for `multiply`; a prefetch never faults.
        unsafe {
            let mut columns = [V::splat(0.0); R];
            for (r, column) in columns.iter_mut().enumerate() {
                let at = w.add(r * step * LANES * F::BYTES);
                *column = F::load(at);
                V::prefetch(at.wrapping_offset(self.ahead));
            }
            for m in 0..M {
                let x = V::splat(*x.add(m * self.x_stride));
                for (sums, column) in sums.iter_mut().zip(&columns) {
                    sums[m] = column.mul_add(x, sums[m]);
                }
            }
            for sums in sums {
                for sum in sums {
                    *sum = sum.pin();
                }
            }
        }
    }
}

impl<V: Vector, F: Float<V, Weights = V>> Tile<V> for DenseTile<F> {
    fn blocks(&self) -> usize {
        self.vectors
    }

    #[inline(always)]
    unsafe fn multiply<const R: usize, const M: usize>(&self, block: usize, step: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            let y = self.y.add(block * LANES);
            let mut sums = [[V::splat(0.0); M]; R];
            if self.add {
                for (r, sums) in sums.iter_mut().enumerate() {
                    for (m, sum) in sums.iter_mut().enumerate() {
                        *sum = V::load(y.add(m * self.y_stride + r * step * LANES));
                    }
                }
            }
            let (mut w, mut x) = (self.w.add(block * LANES * F::BYTES), self.x);
            let stride = self.w_stride * F::BYTES;
            for _ in 0..self.terms / STEP {
                unroll!(I, {
                    self.term::<V, R, M>(w.add(I * stride), step, x.add(I), &mut sums);
                });
                (w, x) = (w.wrapping_add(STEP * stride), x.wrapping_add(STEP));
            }
            for term in 0..self.terms % STEP {
                self.term::<V, R, M>(w.add(term * stride), step, x.add(term), &mut sums);
            }
            for (r, sums) in sums.iter().enumerate() {
                for (m, sum) in sums.iter().enumerate() {
                    sum.store(y.add(m * self.y_stride + r * step * LANES));
                }
            }
        }
    }
}

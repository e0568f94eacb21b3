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
            each!(r in R, {
                let at = w.add(r * step * LANES * F::BYTES);
                columns[r] = F::load(at);
                V::prefetch(at.wrapping_offset(self.ahead));
            });
            each!(m in M, {
                let x = V::splat(*x.add(m * self.x_stride));
                each!(r in R, { sums[r][m] = columns[r].mul_add(x, sums[r][m]) });
            });
            each!(r in R, { each!(m in M, { sums[r][m] = sums[r][m].pin() }) });
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
                each!(r in R, {
                    each!(m in M, {
                        sums[r][m] = V::load(y.add(m * self.y_stride + r * step * LANES));
                    });
                });
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
            each!(r in R, {
                each!(m in M, {
                    sums[r][m].store(y.add(m * self.y_stride + r * step * LANES));
                });
            });
        }
    }
}

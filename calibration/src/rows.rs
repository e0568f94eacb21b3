//! Matrices of f32 in memory, row by row, and their products.

use ndarray::linalg::general_mat_mul;
use ndarray::{ArrayView2, ArrayViewMut2, Axis, s};
use rayon::prelude::*;

/// Fewest rows that a thread multiplies: what it multiplies with is packed for each such part.
const FEWEST: usize = 64;

/// `[rows, width]`, row-major.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Rows {
    pub width: usize,
    pub values: Vec<f32>,
}

impl Rows {
    pub fn new(width: usize, values: Vec<f32>) -> Self {
        debug_assert!(values.len().is_multiple_of(width));
        Self { width, values }
    }

    pub fn zero(rows: usize, width: usize) -> Self {
        Self::new(width, vec![0.0; rows * width])
    }

    pub fn len(&self) -> usize {
        self.values.len() / self.width
    }

    pub fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.width..][..self.width]
    }

    pub fn view(&self) -> ArrayView2<'_, f32> {
        let shape = (self.len(), self.width);
        ArrayView2::from_shape(shape, &self.values).expect("rows of one width")
    }

    pub fn view_mut(&mut self) -> ArrayViewMut2<'_, f32> {
        let shape = (self.len(), self.width);
        ArrayViewMut2::from_shape(shape, &mut self.values).expect("rows of one width")
    }

    /// `self * weights^T`, for weights of `[outputs, inputs]`.
    pub fn times(&self, weights: &Self) -> Self {
        let mut out = Self::zero(self.len(), weights.len());
        self.times_to(weights, &mut out, 0);
        out
    }

    /// The same to the columns of `out` from `first` on.
    pub fn times_to(&self, weights: &Self, out: &mut Self, first: usize) {
        let mut out = out.view_mut();
        let columns = out.slice_mut(s![.., first..first + weights.len()]);
        multiply(1.0, self.view(), weights.view().t(), 0.0, columns);
    }

    /// `self^T * other`, `[width, other.width]`.
    pub fn moments(&self, other: &Self) -> Self {
        let mut out = Self::zero(self.width, other.width);
        multiply(1.0, self.view().t(), other.view(), 0.0, out.view_mut());
        out
    }

    /// Its rows, each times its part of `by`, added up.
    pub fn read(&self, by: &[f32]) -> Vec<f32> {
        let mut out = vec![0.0; self.width];
        for (row, by) in self.values.chunks_exact(self.width).zip(by) {
            out.iter_mut().zip(row).for_each(|(out, x)| *out += by * x);
        }
        out
    }

    /// Its columns from `first` on.
    pub fn columns(&self, first: usize, width: usize) -> Self {
        let mut out = Vec::with_capacity(self.len() * width);
        let rows = self.values.chunks_exact(self.width);
        rows.for_each(|row| out.extend_from_slice(&row[first..first + width]));
        Self::new(width, out)
    }
}

/// `to = by * a b + keep * to`, by all threads.
pub(crate) fn multiply(
    by: f32,
    a: ArrayView2<'_, f32>,
    b: ArrayView2<'_, f32>,
    keep: f32,
    mut to: ArrayViewMut2<'_, f32>,
) {
    let rows = a.nrows().div_ceil(2 * rayon::current_num_threads()).max(FEWEST);
    let a = a.axis_chunks_iter(Axis(0), rows).into_par_iter();
    let to = to.axis_chunks_iter_mut(Axis(0), rows).into_par_iter();
    a.zip(to).for_each(|(a, mut to)| general_mat_mul(by, &a, &b, keep, &mut to));
}

/// Parts side by side.
pub(crate) fn joined(parts: &[Rows]) -> Rows {
    let width = parts.iter().map(|part| part.width).sum();
    let rows = parts.first().map_or(0, Rows::len);
    let mut out = Vec::with_capacity(rows * width);
    for row in 0..rows {
        for part in parts {
            out.extend_from_slice(part.row(row));
        }
    }
    Rows::new(width, out)
}

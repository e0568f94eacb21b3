//! Matrices of f32 in memory, row by row, and their products.

use faer::linalg::matmul::matmul;
use faer::{Accum, MatMut, MatRef, Par};

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

    pub fn view(&self) -> MatRef<'_, f32> {
        MatRef::from_row_major_slice(&self.values, self.len(), self.width)
    }

    pub fn view_mut(&mut self) -> MatMut<'_, f32> {
        let rows = self.len();
        MatMut::from_row_major_slice_mut(&mut self.values, rows, self.width)
    }

    /// `self * weights^T`, for weights of `[outputs, inputs]`.
    pub fn times(&self, weights: &Self) -> Self {
        let mut out = Self::zero(self.len(), weights.len());
        let weights = weights.view().transpose();
        matmul(out.view_mut(), Accum::Replace, self.view(), weights, 1.0, Par::rayon(0));
        out
    }

    /// `self^T * other`, `[width, other.width]`.
    pub fn moments(&self, other: &Self) -> Self {
        let mut out = Self::zero(self.width, other.width);
        let transposed = self.view().transpose();
        matmul(out.view_mut(), Accum::Replace, transposed, other.view(), 1.0, Par::rayon(0));
        out
    }

    /// Its columns from `first` on.
    pub fn columns(&self, first: usize, width: usize) -> Self {
        let rows = self.values.chunks_exact(self.width);
        Self::new(width, rows.flat_map(|row| &row[first..first + width]).copied().collect())
    }
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

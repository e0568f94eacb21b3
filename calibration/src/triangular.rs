//! The triangular factor of an inverse, by blocks: nearly all of the work are products of matrices.

use ndarray::linalg::general_mat_mul;
use ndarray::{Array2, ArrayView2, Axis, s};
use rayon::prelude::*;

use crate::Result;
use crate::watch::{Watch, go_on};

/// Rows and columns of a block.
const BLOCK: usize = 64;

/// The lower triangular `X` of `h^-1 = X^T X`: the inverse of the factor that Cholesky takes `h` apart into. Of `h`
/// the lower half is read; `None` where it is not positive definite.
///
/// # Errors
///
/// [`Error::Stopped`](crate::Error::Stopped) when `watch` breaks off.
pub(crate) fn inverse_factor(mut h: Array2<f64>, watch: Watch) -> Result<Option<Array2<f64>>> {
    let n = h.nrows();
    let mut inverse = Array2::zeros((n, n));
    for first in (0..n).step_by(BLOCK) {
        go_on(watch, 0)?;
        let end = n.min(first + BLOCK);
        let block = h.slice(s![first..end, first..end]);
        let Some(diagonal) = inverse_factor_of_block(block) else { return Ok(None) };

        // The factor's columns below the block, and what they leave of the columns behind.
        let below = h.slice(s![end.., first..end]).dot(&diagonal.t());
        h.slice_mut(s![end.., first..end]).assign(&below);
        h.slice_mut(s![end.., end..])
            .axis_chunks_iter_mut(Axis(0), BLOCK)
            .into_par_iter()
            .zip(below.axis_chunks_iter(Axis(0), BLOCK))
            .enumerate()
            .for_each(|(i, (mut rows, factors))| {
                let columns = below.nrows().min((i + 1) * BLOCK);
                let others = below.slice(s![..columns, ..]);
                let rows = &mut rows.slice_mut(s![.., ..columns]);
                general_mat_mul(-1.0, &factors, &others.t(), 1.0, rows);
            });

        // The inverse's rows of the block, by those above.
        let (above, mut rows) = inverse.view_mut().split_at(Axis(0), first);
        rows.slice_mut(s![..end - first, first..end]).assign(&diagonal);
        let factors = h.slice(s![first..end, ..first]);
        rows.slice_mut(s![..end - first, ..first])
            .axis_chunks_iter_mut(Axis(1), BLOCK)
            .into_par_iter()
            .enumerate()
            .for_each(|(i, mut rows)| {
                let (from, to) = (i * BLOCK, i * BLOCK + rows.ncols());
                let sums = factors.slice(s![.., from..]).dot(&above.slice(s![from.., from..to]));
                general_mat_mul(-1.0, &diagonal, &sums, 0.0, &mut rows);
            });
    }
    Ok(Some(inverse))
}

/// As [`inverse_factor`], a column and a row at a time.
fn inverse_factor_of_block(h: ArrayView2<'_, f64>) -> Option<Array2<f64>> {
    let n = h.nrows();
    let mut factor = Array2::<f64>::zeros((n, n));
    for i in 0..n {
        for j in 0..=i {
            let [of_i, of_j] = [i, j].map(|row| factor.slice(s![row, ..j]));
            let left = h[(i, j)] - of_i.dot(&of_j);
            factor[(i, j)] = match i == j {
                true if left > 0.0 => left.sqrt(),
                // Or no number.
                true => return None,
                false => left / factor[(j, j)],
            };
        }
    }
    let mut inverse = Array2::<f64>::zeros((n, n));
    for i in 0..n {
        inverse[(i, i)] = factor[(i, i)].recip();
        for j in 0..i {
            let sum = factor.slice(s![i, j..i]).dot(&inverse.slice(s![j..i, j]));
            inverse[(i, j)] = -sum * inverse[(i, i)];
        }
    }
    Some(inverse)
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use super::*;
    use crate::Error;
    use crate::rounding::tests::{all, noise};

    /// `a a^T` of noise, and a little on the diagonal.
    fn positive(n: usize) -> Array2<f64> {
        let noise = noise(1, n * n).into_iter().map(f64::from);
        let a = Array2::from_shape_vec((n, n), noise.collect()).unwrap();
        a.dot(&a.t()) + Array2::<f64>::eye(n) * 0.1
    }

    #[test]
    fn who_watches_ends_it_within() {
        let mut left = 2;
        let mut some = |_| {
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let stopped = inverse_factor(positive(3 * BLOCK), &mut some);
        assert!(matches!(stopped, Err(Error::Stopped)), "{stopped:?}");
    }

    #[test]
    fn its_product_is_the_inverse() {
        for n in [1, 63, 64, 65, 200] {
            let mut h = positive(n);
            let whole = h.clone();
            // What is above the diagonal is not read.
            (0..n).for_each(|i| h.slice_mut(s![i, i + 1..]).fill(f64::NAN));
            let x = inverse_factor(h, &mut all).unwrap().unwrap();
            assert!((0..n).all(|i| x.slice(s![i, i + 1..]).iter().all(|it| *it == 0.0)));
            let one = x.t().dot(&x).dot(&whole);
            let off = (&one - &Array2::<f64>::eye(n))
                .iter()
                .fold(0.0, |most: f64, it| most.max(it.abs()));
            assert!(off < 1e-8, "{n}: {off}");
        }
    }

    #[test]
    fn what_is_not_positive_definite_has_none() {
        for at in [0, 70, 129] {
            let mut h = positive(130);
            h[(at, at)] = -1.0;
            assert!(inverse_factor(h.clone(), &mut all).unwrap().is_none());
            h[(at, at)] = f64::NAN;
            assert!(inverse_factor(h, &mut all).unwrap().is_none());
        }
    }
}

//! Rounding a matrix so that what it gives changes least, for what it reads: column by column, and what a
//! column loses is made up for by those that follow (Frantar et al., GPTQ).

use half::f16;
use ndarray::{Array2, s};
use rayon::prelude::*;

use crate::Result;
use crate::grid::{GROUP, best_scale, nearest};
use crate::rows::{Rows, multiply};
use crate::triangular::inverse_factor;
use crate::watch::{Watch, go_on};

/// What is added to the squares of each column, as a share of their mean: the text is not all that there is.
const DAMPING: f64 = 0.05;

/// A matrix of integers of four bits.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Rounded {
    /// `[rows, columns]`, from -8 to 7.
    pub integers: Vec<i8>,
    /// `[rows, columns / 32]`.
    pub scales: Vec<f16>,
    pub columns: usize,
}

impl Rounded {
    pub fn values(&self) -> Rows {
        let groups = self.integers.chunks_exact(GROUP).zip(&self.scales);
        let values = groups
            .flat_map(|(integers, scale)| integers.iter().map(|q| f32::from(*q) * scale.to_f32()));
        Rows::new(self.columns, values.collect())
    }
}

/// What matrices read that have the same input: how much a column matters, and which others can stand in.
pub(crate) struct Reads {
    /// The columns in the order in which they are rounded, group by group, the largest squares first.
    order: Vec<usize>,
    /// In that order, upper triangular, `U` of `H^-1 = U^T U`, where `H` are the moments.
    factor: Rows,
    /// In the matrix' own order: what undoes the inputs' own loss (see [`Reads::new`]), if known.
    correction: Option<Rows>,
}

impl Reads {
    /// Of inputs `x`, which are what the rounded layers before give. `exact` is what the model's own layers
    /// give: `W` then becomes `W X x^T (x x^T)^-1`, of all matrices the one that makes of `x` what is nearest
    /// to what `W` makes of `exact` (Li et al., GPTAQ, in its closed form).
    ///
    /// `None` where the moments are not finite.
    ///
    /// # Errors
    ///
    /// [`Error::Stopped`](crate::Error::Stopped) when `watch` breaks off.
    pub fn new(x: &Rows, exact: Option<Rows>, watch: Watch) -> Result<Option<Self>> {
        let width = x.width;
        let moments = x.moments(x);
        let diagonal = |i: usize| f64::from(moments.values[i * width + i]);
        let mean = (0..width).map(diagonal).sum::<f64>() / width as f64;
        let damping = if mean > 0.0 { DAMPING * mean } else { 1.0 };
        let order = order(width, diagonal);
        let Some(factor) = factor(&moments, &order, damping, watch)? else { return Ok(None) };
        let mut correction = None;
        if let Some(mut lost) = exact {
            lost.values.iter_mut().zip(&x.values).for_each(|(lost, x)| *lost -= x);
            // (X - x) x^T H^-1, of which the last is U^T U.
            let lost = permuted(&lost.moments(x), &order);
            go_on(watch, 0)?;
            let lost = lost.times(&factor);
            go_on(watch, 0)?;
            let mut solved = Rows::zero(width, width);
            multiply(1.0, lost.view(), factor.view(), 0.0, solved.view_mut());
            let mut place = vec![0; width];
            order.iter().enumerate().for_each(|(i, column)| place[*column] = i);
            correction = Some(permuted(&solved, &place));
        }
        let finite = factor.values.iter().all(|it| it.is_finite());
        Ok(finite.then_some(Self { order, factor, correction }))
    }

    /// Rounds `weights`, `[rows, width]`, whose width is whole groups. What is not finite has a scale that is not.
    pub fn round(&self, weights: &Rows) -> Rounded {
        let (width, rows) = (weights.width, weights.len());
        let mut meant = weights.clone();
        if let Some(correction) = &self.correction {
            multiply(1.0, weights.view(), correction.view(), 1.0, meant.view_mut());
        }
        let mut left = permuted(&meant, &self.order);
        let mut integers = vec![0; rows * width];
        let mut scales = vec![f16::ZERO; rows * width / GROUP];
        for first in (0..width).step_by(GROUP) {
            let columns = &self.order[first..first + GROUP];
            let number = columns[0] / GROUP;
            let factors: [&[f32]; GROUP] =
                std::array::from_fn(|i| &self.factor.row(first + i)[first..first + GROUP]);
            let importance: [f32; GROUP] = std::array::from_fn(|i| factors[i][i].powi(-2));
            let mut errors = Rows::zero(rows, GROUP);
            left.values
                .par_chunks_mut(width)
                .zip(errors.values.par_chunks_mut(GROUP))
                .zip(integers.par_chunks_mut(width).zip(scales.par_chunks_mut(width / GROUP)))
                .for_each(|((left, errors), (integers, scales))| {
                    let left = &mut left[first..first + GROUP];
                    let scale = best_scale(left, &importance);
                    scales[number] = scale;
                    let scale = scale.to_f32();
                    for (i, factors) in factors.iter().enumerate() {
                        let q = nearest(left[i], scale);
                        integers[columns[i]] = q as i8;
                        errors[i] = (left[i] - q * scale) / factors[i];
                        let behind = left[i + 1..].iter_mut().zip(&factors[i + 1..]);
                        behind.for_each(|(left, factor)| *left -= errors[i] * factor);
                    }
                });
            let behind = first + GROUP;
            if behind < width {
                let factors = self.factor.view();
                let factors = factors.slice(s![first..behind, behind..]);
                let mut left = left.view_mut();
                multiply(-1.0, errors.view(), factors, 1.0, left.slice_mut(s![.., behind..]));
            }
        }
        Rounded { integers, scales, columns: width }
    }
}

/// The upper triangular `U` of `(moments + damping)^-1 = U^T U`, whose rows and columns are in `order`.
fn factor(moments: &Rows, order: &[usize], damping: f64, watch: Watch) -> Result<Option<Rows>> {
    let width = order.len();
    // Both orders turned around: of H = M M^T with M upper triangular, U is the inverse of M.
    let at = |i: usize| order[width - 1 - i];
    let damped = Array2::from_shape_fn((width, width), |(i, j)| {
        let moment = f64::from(moments.values[at(i) * width + at(j)]);
        if i == j { moment + damping } else { moment }
    });
    let Some(inverse) = inverse_factor(damped, watch)? else { return Ok(None) };
    let mut upper = Rows::zero(width, width);
    for i in 0..width {
        for j in i..width {
            upper.values[i * width + j] = inverse[(width - 1 - i, width - 1 - j)] as f32;
        }
    }
    Ok(Some(upper))
}

/// Groups by the squares that their columns read, and columns of a group so.
fn order(width: usize, squares: impl Fn(usize) -> f64) -> Vec<usize> {
    let mut groups: Vec<Vec<usize>> =
        (0..width).step_by(GROUP).map(|first| (first..first + GROUP).collect()).collect();
    for columns in &mut groups {
        columns.sort_by(|a, b| squares(*b).total_cmp(&squares(*a)));
    }
    let sum = |columns: &[usize]| columns.iter().map(|it| squares(*it)).sum::<f64>();
    groups.sort_by(|a, b| sum(b).total_cmp(&sum(a)));
    groups.concat()
}

/// Column `order[i]` of `rows` as column `i`.
fn permuted(rows: &Rows, order: &[usize]) -> Rows {
    let mut out = Rows::zero(rows.len(), rows.width);
    let from = rows.values.par_chunks(rows.width);
    out.values.par_chunks_mut(rows.width).zip(from).for_each(|(out, row)| {
        out.iter_mut().zip(order).for_each(|(out, column)| *out = row[*column]);
    });
    out
}

#[cfg(test)]
pub(crate) mod tests {
    use std::ops::ControlFlow;

    use super::*;

    pub(crate) fn all(_: u64) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn reads(x: &Rows, exact: Option<&Rows>) -> Option<Reads> {
        Reads::new(x, exact.cloned(), &mut all).unwrap()
    }

    /// Numbers of a bell, about, always the same.
    pub(crate) fn noise(seed: u64, count: usize) -> Vec<f32> {
        let mut state = seed;
        let mut uniform = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) as f32 / (1 << 24) as f32 - 0.5
        };
        (0..count).map(|_| (0..4).map(|_| uniform()).sum()).collect()
    }

    /// `[rows, 64]` that are mixed of 24 numbers and a little of their own.
    fn inputs(rows: usize) -> Rows {
        let mixing = Rows::new(24, noise(1, 64 * 24));
        let mut inputs = Rows::new(24, noise(2, rows * 24)).times(&mixing);
        inputs.values.iter_mut().zip(noise(3, rows * 64)).for_each(|(x, own)| *x += 0.1 * own);
        inputs
    }

    fn distance(a: &Rows, b: &Rows) -> f32 {
        a.values.iter().zip(&b.values).map(|(a, b)| (a - b).powi(2)).sum::<f32>().sqrt()
    }

    #[test]
    fn columns_make_up_for_each_other() {
        let (x, weights) = (inputs(256), Rows::new(64, noise(4, 48 * 64)));
        let by_text = reads(&x, None).unwrap().round(&weights).values();
        let mut nearest_values = weights.clone();
        for group in nearest_values.values.chunks_mut(GROUP) {
            let scale = best_scale(group, &[1.0; GROUP]).to_f32();
            group.iter_mut().for_each(|weight| *weight = nearest(*weight, scale) * scale);
        }
        let meant = x.times(&weights);
        let [lost, plain] = [&by_text, &nearest_values].map(|it| distance(&x.times(it), &meant));
        assert!(lost < 0.6 * plain, "{lost} and {plain}");
        assert!(distance(&by_text, &weights) > distance(&nearest_values, &weights));
    }

    #[test]
    fn what_inputs_have_lost_is_made_up_for() {
        let exact = inputs(256);
        let weights = Rows::new(64, noise(4, 48 * 64));
        let mut x = exact.clone();
        // What a layer before makes of a part of it: too small, and mixed with a neighbour.
        for row in x.values.chunks_exact_mut(64) {
            for i in 0..63 {
                row[i] = 0.9 * row[i] + 0.1 * row[i + 1];
            }
        }
        let meant = exact.times(&weights);
        let [with, without] = [Some(&exact), None].map(|exact| {
            let rounded = reads(&x, exact).unwrap().round(&weights).values();
            distance(&x.times(&rounded), &meant)
        });
        assert!(with < 0.7 * without, "{with} and {without}");
    }

    #[test]
    fn what_is_on_the_grid_stays() {
        let integers = (0..128).map(|i| ((i * 37 % 16) - 8) as f32 * 0.25);
        let weights = Rows::new(64, integers.collect());
        let rounded = reads(&inputs(128), None).unwrap().round(&weights);
        assert_eq!(rounded.values(), weights);
    }

    #[test]
    fn inputs_that_are_no_numbers_are_refused() {
        let mut x = inputs(16);
        x.values[5] = f32::NAN;
        assert!(reads(&x, None).is_none());
    }

    #[test]
    fn what_is_no_number_does_not_become_zero() {
        let (x, weights) = (inputs(128), Rows::new(64, noise(4, 48 * 64)));
        let finite = |rounded: Rounded| rounded.scales.iter().all(|scale| scale.is_finite());
        for value in [f32::NAN, f32::INFINITY] {
            let mut wrong = weights.clone();
            wrong.values[70] = value;
            assert!(!finite(reads(&x, None).unwrap().round(&wrong)), "a weight of {value}");
            let mut exact = x.clone();
            exact.values[5] = value;
            let read = reads(&x, Some(&exact));
            assert!(!finite(read.unwrap().round(&weights)), "an exact input of {value}");
        }
    }
}

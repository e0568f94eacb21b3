//! Which rows may have the largest product, by products with a
//! [sketch](crate::quantise::sketch_block) of the weights: only these meet the weights themselves.

use std::ops::Range;
use std::slice;

use super::{Format, Kernel, LANES, Product};

/// The operands of one call: one row of activations and a run of blocks of one weight matrix.
///
/// A row gets the same product whether others do or not, and all rows of the largest product get it.
#[derive(Clone, Debug)]
pub struct Candidates {
    /// The whole matrix, with one row of activations. `y` has their products with the sketch before.
    pub product: Product,
    /// The blocks of the run.
    pub run: Range<usize>,
    /// `[blocks * 16]`: as [`sketch_block`](crate::quantise::sketch_block) has them.
    pub errors: *const f32,
    /// One row of the matrix: the larger its product, the fewer others are computed. That with the
    /// largest product with the sketch is a good one. `None` computes all; what `y` has and `errors`
    /// are not read then.
    pub best: Option<usize>,
}

/// Overwrites the run's part of `y`: products of blocks that have a row which may win, negative infinity
/// elsewhere. `product` is a kernel for weights of `format`.
///
/// # Safety
///
/// As for `product`, with the run's blocks and with that of `best`, which is one of the matrix's rows;
/// every pointer is valid for what its field states. Of `y` only the run's elements are accessed: they are
/// initialised unless `best` is `None`, and nothing else accesses them during the call.
pub unsafe fn candidates(product: Kernel, format: Format, of: &Candidates) {
    let Candidates { product: ref whole, ref run, errors, best } = *of;
    let blocks = |run: Range<usize>| blocks_of(whole, format, run);
    // SAFETY: the caller's promise; all blocks below are the matrix's.
    unsafe {
        let Some(best) = best else {
            product(&blocks(run.clone()));
            return;
        };
        let mut of_best = [0.0; LANES];
        let block = best / LANES;
        product(&Product { y: of_best.as_mut_ptr(), ..blocks(block..block + 1) });
        let mut least = of_best[best % LANES];

        let norm = norm(whole, format);
        for block in run.clone() {
            let y = whole.y.add(block * LANES).cast::<[f32; LANES]>();
            let errors = errors.add(block * LANES).cast::<[f32; LANES]>();
            if may_win(&y.read(), &*errors, norm, least) {
                product(&blocks(block..block + 1));
                // A `least` that is not a number stays, so that no more are left out. The zeros of
                // rows behind the last may be more than any product, but no block is behind them.
                for y in y.read() {
                    least = if y > least { y } else { least };
                }
            } else {
                y.write([f32::NEG_INFINITY; LANES]);
            }
        }
    }
}

/// Whether one of a block's rows may have a product of `least` or more.
///
/// What f64 rounds here is 2^-53 of what the rows' errors allow for at 2^-23, and `norm` is rounded
/// up by more. `least` is a product as it is computed, not a bound: a row of the same product is
/// kept. So is one with a value that is not a number, as nothing is less than that.
fn may_win(sketched: &[f32; LANES], errors: &[f32; LANES], norm: f64, least: f32) -> bool {
    let mut all_lose = true;
    for (&sketched, &error) in sketched.iter().zip(errors) {
        // Sums of products that were flushed to zero are less than 1e-25.
        let most = f64::from(sketched) + f64::from(error) * norm + 1e-25;
        all_lose &= most < f64::from(least);
    }
    !all_lose
}

/// The euclidean norm of the activations, and a little more; infinity where a product may be too
/// large for f32, of which no bound says how: then nothing is left out.
///
/// Groups of activations below 1e-30 are zeros to a sketch, and those below 1e-38 to anything: with
/// 1e-20 more the rows' errors, 0.0001 of their norms or more, make up for it.
unsafe fn norm(whole: &Product, format: Format) -> f64 {
    let Product { x, columns, .. } = *whole;
    // SAFETY: the caller's promise: one row, of as many columns.
    let square = unsafe {
        match format {
            Format::Bf16Rounded => {
                let widen = |x: u16| f32::from_bits(u32::from(x) << 16);
                sum_of_squares(slice::from_raw_parts(x.cast(), columns), widen)
            }
            _ => sum_of_squares(slice::from_raw_parts(x.cast(), columns), |x: f32| x),
        }
    };
    // A sketch has no weights above 2e6.
    let norm = square.sqrt();
    if norm < 1e28 { norm * 1.000_001 + 1e-20 } else { f64::INFINITY }
}

fn sum_of_squares<T: Copy>(x: &[T], widen: impl Fn(T) -> f32) -> f64 {
    let mut sums = [0.0; 8];
    for x in x.chunks(sums.len()) {
        for (sum, &x) in sums.iter_mut().zip(x) {
            let x = f64::from(widen(x));
            *sum += x * x;
        }
    }
    sums.iter().sum()
}

/// The product of one row with some blocks of a matrix.
fn blocks_of(whole: &Product, format: Format, run: Range<usize>) -> Product {
    let Product { weights, index, y, columns, .. } = *whole;
    let (weights, index) = match index.is_null() {
        true => (weights.wrapping_add(run.start * format.block_bytes(columns)), index),
        false => (weights, index.wrapping_add(run.start)),
    };
    let y = y.wrapping_add(run.start * LANES);
    Product { weights, index, y, blocks: run.len(), ..*whole }
}

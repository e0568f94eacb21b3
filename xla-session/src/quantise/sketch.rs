//! A sketch of float weights: integers of nearly the same numbers, and how far products with them
//! can be from those with the weights.

use super::{pack_block, unpack_row};
use crate::kernels::{Format, LANES};

/// The format of sketches. Measured by arithmetic on Gaussian weights of 2048 columns: with four bits
/// nearly every row may have the largest product, with six one in 2000.
pub const SKETCH: Format = Format::Int6;

/// Sketches up to [`LANES`] rows, all of the same length, to a block of [`SKETCH`]; `errors` becomes
/// 0 for missing rows.
///
/// A product of f32 activations `x` with a row's weights and one with its sketch, as
/// [`kernels`](crate::kernels) compute them, differ by at most the row's error times the euclidean
/// norm of `x`, but for what [`candidates`](crate::kernels::candidates) does about numbers near f32's
/// least and largest. With `w` the weights, `s` their sketch and `u` 2^-24:
///
/// - The sketch lacks `(w - s) x`, at most the product of the two norms (Cauchy-Schwarz).
/// - It meets activations that are rounded to 32639ths of the largest of their group, which are
///   within 0.51 of such a step: the 32 of a group by less than 0.0001 of its norm.
/// - A product of `n` columns is rounded at most `2 n` times, and then some, each time by `u` of at
///   most the norm of `x` times that of `w` or `s`.
///
/// # Panics
///
/// As [`pack_block`].
pub fn sketch_block(rows: &[&[f32]], block: &mut [u8], errors: &mut [f32; LANES]) {
    pack_block(SKETCH, rows, block);
    *errors = [0.0; LANES];
    let mut sketch = vec![0.0; rows.first().map_or(0, |row| row.len())];
    for (lane, (row, error)) in rows.iter().zip(errors).enumerate() {
        unpack_row(SKETCH, block, lane, &mut sketch);
        let [mut weights, mut sketched, mut lacks] = [0.0; 3];
        for (&w, &s) in row.iter().zip(&sketch) {
            let (w, s) = (f64::from(w), f64::from(s));
            weights += w * w;
            sketched += s * s;
            lacks += (w - s) * (w - s);
        }
        let [weights, sketched, lacks] = [weights, sketched, lacks].map(f64::sqrt);
        let rounded = 1e-4 + (row.len() + 64) as f64 * f64::from(f32::EPSILON);
        // Rounded up by more than any rounding above; never so small that it is flushed to zero.
        *error = ((lacks + (weights + sketched) * rounded) * 1.000_001 + 1e-30) as f32;
    }
}

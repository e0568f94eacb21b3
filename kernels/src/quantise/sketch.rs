//! A sketch of float weights: integers of nearly the same numbers, and how far products with them
//! can be from those with the weights.

use half::f16;

use super::{Bits, half, pack_block, places, transpose};
use crate::format::{Format, GROUP, LANES, SCALES};

/// The format of sketches. Measured by arithmetic on Gaussian weights of 2048 columns: with four bits
/// nearly every row may have the largest product, with six one in 2000.
pub const SKETCH: Format = Format::Int6;

/// Sketches up to [`LANES`] rows, all of the same length, to a block of [`SKETCH`]; `errors` becomes
/// 0 for missing rows.
///
/// A product of f32 activations `x` with a row's weights and one with its sketch, as
/// [products](crate::product()) compute them, differ by at most the row's error times the euclidean
/// norm of `x`, but for what [`candidates`](crate::candidates) does about numbers near f32's
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
    // Of each row, all rows at a time: sums of squares.
    let [mut weights, mut sketched, mut lacks] = [[0.0; LANES]; 3];
    for (number, group) in block.chunks_exact(SKETCH.block_bytes(GROUP)).enumerate() {
        let (values, scales) = group.split_at(group.len() - SCALES);
        let mut of_lanes = [0.0; LANES];
        for (to, scale) in of_lanes.iter_mut().zip(scales.as_chunks().0) {
            *to = f64::from(f16::from_le_bytes(*scale));
        }
        for (column, given) in transpose(rows, number).iter().enumerate() {
            let stored = stored(values, column);
            for lane in 0..LANES {
                let w = f64::from(given[lane]);
                let s = f64::from(stored[lane] as i32 - half(6)) * of_lanes[lane];
                weights[lane] += w * w;
                sketched[lane] += s * s;
                lacks[lane] += (w - s) * (w - s);
            }
        }
    }
    *errors = [0.0; LANES];
    for (lane, (row, error)) in rows.iter().zip(errors).enumerate() {
        let [weights, sketched, lacks] = [weights, sketched, lacks].map(|sums| sums[lane].sqrt());
        let rounded = 1e-4 + (row.len() + 64) as f64 * f64::from(f32::EPSILON);
        // Rounded up by more than any rounding above; never so small that it is flushed to zero.
        *error = ((lacks + (weights + sketched) * rounded) * 1.000_001 + 1e-30) as f32;
    }
}

/// What [`pack_block`] stored of a column of each row.
#[inline(always)]
fn stored(values: &[u8], column: usize) -> [u32; LANES] {
    let words = values.as_chunks::<4>().0.as_chunks::<LANES>().0;
    let mut stored = [0; LANES];
    for Bits { word, at, of, mask } in places::<6>(column) {
        for lane in 0..LANES {
            stored[lane] |= (u32::from_le_bytes(words[word][lane]) >> at & mask) << of;
        }
    }
    stored
}

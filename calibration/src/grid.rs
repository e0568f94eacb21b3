//! Four bits: integers from -8 to 7 in groups of 32 columns, whose scales are f16.

use half::f16;

/// Columns of a row that share a scale.
pub(crate) const GROUP: usize = 32;

/// The least integer; the largest is one less far from zero.
pub(crate) const LEAST: f32 = -8.0;

/// What the weight of largest magnitude is stretched to before rounding, from the least integer on.
const STRETCHES: [f32; 12] = [0.0, -0.8, -0.6, -0.4, -0.2, 0.2, 0.4, 0.6, 0.8, 1.0, 1.3, 1.6];

/// The integer of `weight` in units of `scale`, as a float; 0 for a scale of 0.
pub(crate) fn nearest(weight: f32, scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { (weight / scale).round_ties_even().clamp(LEAST, -LEAST - 1.0) }
}

/// The scale of a group that leaves the least squared error, counted as `importance` says.
///
/// With the integers `q` that a first scale gives, the best one is `sum(w q) / sum(q q)`, and it leaves
/// `sum(w w) - sum(w q)^2 / sum(q q)`. NaN where a weight is not finite.
pub(crate) fn best_scale(weights: &[f32], importance: &[f32]) -> f16 {
    let largest =
        weights.iter().copied().fold(0.0, |a: f32, b| if b.abs() > a.abs() { b } else { a });
    let (mut best, mut most) = (0.0, 0.0);
    if !weights.iter().all(|weight| weight.is_finite()) {
        return f16::NAN;
    }
    if largest == 0.0 {
        return f16::ZERO;
    }
    for stretch in STRETCHES {
        let scale = largest / (LEAST + stretch);
        let (mut products, mut squares) = (0.0, 0.0);
        for (weight, importance) in weights.iter().zip(importance) {
            let q = nearest(*weight, scale);
            products += importance * weight * q;
            squares += importance * q * q;
        }
        // Not for a rounding error: what is on a grid stays there.
        if squares > 0.0 && products * products / squares > most * 1.000_001 {
            (best, most) = (products / squares, products * products / squares);
        }
    }
    f16::from_f32(best)
}

//! Groups with minima, whose scales and minima are bytes in units that eight groups have in common.

use half::f16;

use super::{Columns, places, round, transpose};
use crate::format::{Format, GROUP, LANES};

/// The largest integer.
const MOST: i32 = 15;

/// The largest scale or minimum in its unit.
const UNITS: i32 = 255;

/// What the largest weight becomes before rounding, beyond [`MOST`]. On normally distributed weights 0
/// alone leaves an error of 7.37%, these four 7.11%, and twenty-one of them 7.00%.
const STRETCHES: [f32; 4] = [0.0, 0.8, -0.7, -1.4];

/// Of each row a number.
type Lanes = [f32; LANES];

/// Of each row what integers are multiplied with, and what is taken off the product: never negative.
#[derive(Clone, Copy)]
struct Fit {
    scale: Lanes,
    depth: Lanes,
}

/// Quantises rows, of the same length, to a block.
pub(super) fn pack(rows: &[&[f32]], block: &mut [u8]) {
    let groups = rows.first().map_or(0, |row| row.len()).div_ceil(GROUP);
    let integers = Format::Nested4.integers().expect("integers");
    let together = integers.head + integers.together * integers.group();
    for (number, block) in block.chunks_mut(together).enumerate() {
        let first = number * integers.together;
        let count = integers.together.min(groups - first);
        let columns: Vec<Columns> =
            (first..first + count).map(|group| transpose(rows, group)).collect();
        let fits: Vec<Fit> = columns.iter().map(fit).collect();
        let units = Fit {
            scale: unit(fits.iter().map(|fit| &fit.scale)),
            depth: unit(fits.iter().map(|fit| &fit.depth)),
        };
        let (head, block) = block.split_at_mut(integers.head);
        let (scales, minima) = head.as_chunks_mut::<2>().0.split_at_mut(LANES);
        for lane in 0..LANES {
            scales[lane] = f16::from_f32(units.scale[lane]).to_le_bytes();
            minima[lane] = f16::from_f32(-units.depth[lane]).to_le_bytes();
        }
        let of_groups = block.chunks_exact_mut(integers.group());
        for ((columns, fit), group) in columns.iter().zip(&fits).zip(of_groups) {
            pack_group(columns, fit, &units, group);
        }
    }
}

/// The unit of each row in which its numbers, none of them negative, are at most [`UNITS`]: an f16, not
/// rounded down; NaN where one of them is no number, or f16 has no such unit.
fn unit<'a>(of_groups: impl Iterator<Item = &'a Lanes>) -> Lanes {
    let mut most = [0.0; LANES];
    for of_group in of_groups {
        for lane in 0..LANES {
            // NaN stays.
            if of_group[lane] > most[lane] || of_group[lane].is_nan() {
                most[lane] = of_group[lane];
            }
        }
    }
    most.map(|most| {
        let wanted = most / UNITS as f32;
        let mut unit = f16::from_f32(wanted);
        if unit.to_f32() < wanted {
            unit = f16::from_bits(unit.to_bits() + 1);
        }
        if unit.is_finite() { unit.to_f32() } else { f32::NAN }
    })
}

/// Quantises a group with the scale and the minimum that fit it best of those that are next to its
/// own in `units`.
fn pack_group(columns: &Columns, wanted: &Fit, units: &Fit, group: &mut [u8]) {
    let inverse = |of: Lanes| of.map(|it| if it > 0.0 { 1.0 / it } else { 0.0 });
    let inverses = Fit { scale: inverse(units.scale), depth: inverse(units.depth) };
    let mut best = [[0; LANES]; 2];
    let mut least = [f32::INFINITY; LANES];
    for above in [0, 1] {
        let depths = next_to(&wanted.depth, &inverses.depth, above);
        let depth = std::array::from_fn(|lane| depths[lane] as f32 * units.depth[lane]);
        let scale = fit_scales(columns, &Fit { depth, ..*wanted });
        for above in [0, 1] {
            let scales = next_to(&scale, &inverses.scale, above);
            let scale = std::array::from_fn(|lane| scales[lane] as f32 * units.scale[lane]);
            let error = error(columns, &Fit { scale, depth });
            for lane in 0..LANES {
                if error[lane] < least[lane] {
                    least[lane] = error[lane];
                    [best[0][lane], best[1][lane]] = [scales[lane], depths[lane]];
                }
            }
        }
    }
    let fit = Fit {
        scale: std::array::from_fn(|lane| best[0][lane] as f32 * units.scale[lane]),
        depth: std::array::from_fn(|lane| best[1][lane] as f32 * units.depth[lane]),
    };
    let (weights, own) = group.split_at_mut(group.len() - 2 * LANES);
    let mut words = [[0_u32; LANES]; 4];
    let scales = inverse(fit.scale);
    for (number, column) in columns.iter().enumerate() {
        let [bits, _] = places::<4>(number);
        for lane in 0..LANES {
            let q = round((column[lane] + fit.depth[lane]) * scales[lane], 0, MOST);
            words[bits.word][lane] |= (q as u32) << bits.at;
        }
    }
    for (bytes, word) in weights.as_chunks_mut().0.iter_mut().zip(words.as_flattened()) {
        *bytes = word.to_le_bytes();
    }
    for (to, of) in own.as_chunks_mut::<LANES>().0.iter_mut().zip(best) {
        *to = of.map(|byte| byte as u8);
    }
}

/// Each number in its unit, rounded down, and `above`.
fn next_to(numbers: &Lanes, inverses: &Lanes, above: i32) -> [i32; LANES] {
    std::array::from_fn(|lane| {
        let units = numbers[lane] * inverses[lane];
        if units < UNITS as f32 { units as i32 + above } else { UNITS }
    })
}

/// For each row the scale and the minimum that leave the least squared error, of those that
/// [`STRETCHES`] suggest; NaN where there are weights that are no numbers.
///
/// With the integers `q` that a first scale gives, both are those of a line through the weights.
fn fit(columns: &Columns) -> Fit {
    const COUNT: f32 = GROUP as f32;
    let (mut low, mut high, mut sum, mut poison) =
        ([0.0_f32; LANES], [f32::MIN; LANES], [0.0; LANES], [0.0; LANES]);
    for column in columns {
        for lane in 0..LANES {
            let weight = column[lane];
            low[lane] = if weight < low[lane] { weight } else { low[lane] };
            high[lane] = if weight > high[lane] { weight } else { high[lane] };
            sum[lane] += weight;
            poison[lane] += weight * 0.0;
        }
    }
    let mut best = Fit { scale: [0.0; LANES], depth: low.map(|low| -low) };
    let mut most = [f32::MIN; LANES];
    for stretch in STRETCHES {
        let mut inverses = [0.0; LANES];
        for lane in 0..LANES {
            let range = high[lane] - low[lane];
            inverses[lane] = if range > 0.0 { (MOST as f32 + stretch) / range } else { 0.0 };
        }
        let (mut products, mut integers, mut squares) = ([0.0; LANES], [0.0; LANES], [0.0; LANES]);
        for column in columns {
            for lane in 0..LANES {
                let q = round((column[lane] - low[lane]) * inverses[lane], 0, MOST) as f32;
                products[lane] += column[lane] * q;
                integers[lane] += q;
                squares[lane] += q * q;
            }
        }
        for lane in 0..LANES {
            let (wq, q, qq, w) = (products[lane], integers[lane], squares[lane], sum[lane]);
            let spread = COUNT * qq - q * q;
            let (mut scale, mut depth) =
                ((COUNT * wq - w * q) / spread, (q * wq - qq * w) / spread);
            // No number where all integers are the same.
            if depth.is_nan() || depth < 0.0 {
                (scale, depth) = (wq / qq, 0.0);
            }
            // The squared error is the sum of squared weights minus this.
            let explained = 2.0 * scale * wq - 2.0 * depth * w - scale * scale * qq
                + 2.0 * scale * depth * q
                - COUNT * depth * depth;
            if scale > 0.0 && explained > most[lane] {
                most[lane] = explained;
                (best.scale[lane], best.depth[lane]) = (scale, depth);
            }
        }
    }
    for (lane, poison) in poison.into_iter().enumerate() {
        best.scale[lane] += poison;
        best.depth[lane] += poison;
    }
    best
}

/// The scales that leave the least squared error with these minima and the integers that `fit` gives.
fn fit_scales(columns: &Columns, fit: &Fit) -> Lanes {
    let (mut products, mut squares) = ([0.0; LANES], [0.0; LANES]);
    let inverses = fit.scale.map(|scale| if scale > 0.0 { 1.0 / scale } else { 0.0 });
    for column in columns {
        for lane in 0..LANES {
            let above = column[lane] + fit.depth[lane];
            let q = round(above * inverses[lane], 0, MOST) as f32;
            products[lane] += above * q;
            squares[lane] += q * q;
        }
    }
    std::array::from_fn(|lane| match squares[lane] > 0.0 {
        true => products[lane] / squares[lane],
        false => fit.scale[lane],
    })
}

/// The squared error of each row.
fn error(columns: &Columns, fit: &Fit) -> Lanes {
    let mut sums = [0.0; LANES];
    let inverses = fit.scale.map(|scale| if scale > 0.0 { 1.0 / scale } else { 0.0 });
    for column in columns {
        for lane in 0..LANES {
            let above = column[lane] + fit.depth[lane];
            let q = round(above * inverses[lane], 0, MOST) as f32;
            let error = above - q * fit.scale[lane];
            sums[lane] += error * error;
        }
    }
    sums
}

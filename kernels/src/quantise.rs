//! Weights as small integers times a scale for each group of columns.
//!
//! A group is [`GROUP`] consecutive columns of one row; its scale is stored as f16 and the weight
//! is `q * scale`, with `q` in `-127..=127` (int8), `-32..=31` (int6) or `-8..=7` (int4); or, with `q` in `0..=15`,
//! `q * scale - depth`, and both of them bytes in units of their own ([`Format::Nested4`]). Packed
//! values lie in blocks of [`LANES`] rows, as [products](crate::product()) read them, or row by row,
//! as GPUs do (int8, int4): the same numbers in another order.
//!
//! A scale that f16 cannot hold becomes NaN: of a group with an infinite or NaN weight, or with
//! one above about 8e6 (int8), 2e6 (int6) or 5e5 (int4). No such weight turns into an ordinary
//! number. Of [`Format::Nested4`] all eight groups that have units in common become NaN then, and from
//! about 2e8 on.

mod nested;
mod sketch;

use half::f16;

pub use sketch::{SKETCH, sketch_block};

use crate::format::{Format, GROUP, Integers, LANES, SCALES};
pub use crate::ggml::unpack_row;

/// A group of each row of a block: `[columns, rows]`.
type Columns = [[f32; LANES]; GROUP];

/// Quantises up to [`LANES`] rows, all of the same length, to a block of `format`; missing rows and
/// columns become zeros.
///
/// A group is its weights and then its scales, `[16]` f16: read side by side they are one stream,
/// which is up to a fifth faster than two. Its weights are
///
/// - int8: `[4, 2, 16, 4]` i8, byte `i` of `(j, odd, lane)` being column `8 j + 2 i + odd`.
/// - int4: `[4, 16]` little-endian u32, nibble `i` of word `(j, lane)` being column `8 j + i`
///   plus 8.
/// - int6: `[6, 16]` little-endian u32 with each column plus 32. Columns `2 i` and `2 i + 1` lie in
///   the low and the high half of a word, as pairs. Pair `i` below 12 has six bits from bit
///   `6 (i % 2)` of word `i / 2` on. Four bits of each half are left: those of word `j` below 4 have
///   the low bits of pair `12 + j`, whose two others are from bit `12 + 2 (j % 2)` of word
///   `4 + j / 2` on.
/// - nested4: as int4, without the 8. Its scales are `[2, 16]` u8: scales and minima. Before each
///   eight groups, and what is left of them at the end, are `[2, 16]` f16: what these are multiplied
///   with, that of minima negative.
///
/// # Panics
///
/// When the format is none of integers, the rows differ in length or are more than [`LANES`], or
/// the block has another size than [`Format::block_bytes`] says.
pub fn pack_block(format: Format, rows: &[&[f32]], block: &mut [u8]) {
    let columns = rows.first().map_or(0, |row| row.len());
    assert!(rows.len() <= LANES, "{} rows in a block of {LANES}", rows.len());
    assert!(rows.iter().all(|row| row.len() == columns), "rows of different lengths");
    assert_eq!(block.len(), format.block_bytes(columns), "bytes of a block");
    let pack = match format.stored() {
        Format::Int8 => pack_bytes,
        Format::Int6 => pack_words::<6>,
        Format::Int4 => pack_words::<4>,
        Format::Nested4 => return nested::pack(rows, block),
        _ => panic!("{format:?} weights are not quantised"),
    };
    let group_bytes = format.integers().map_or(1, Integers::group);
    for (number, group) in block.chunks_exact_mut(group_bytes).enumerate() {
        let (values, stored) = group.split_at_mut(group_bytes - SCALES);
        let scales = pack(&transpose(rows, number), values);
        for (stored, scale) in stored.as_chunks_mut().0.iter_mut().zip(scales) {
            *stored = scale.to_le_bytes();
        }
    }
}

/// Quantises a group of a block to int8; returns its scales.
fn pack_bytes(columns: &Columns, values: &mut [u8]) -> [f16; LANES] {
    let (scales, inverses) = scales(int8_scales(columns), INT8_LEAST);
    let words = values.as_chunks_mut::<4>().0.as_chunks_mut::<LANES>().0;
    for (number, words) in words.iter_mut().enumerate() {
        let columns = quad(number).map(|column| &columns[column]);
        for lane in 0..LANES {
            let byte = |column: &[f32; LANES]| round(column[lane] * inverses[lane], -127, 127);
            words[lane] = columns.map(|column| byte(column) as u8);
        }
    }
    scales
}

/// Quantises a group of a block to integers of `BITS` bits, 4 or 6, in as many words of each lane;
/// returns its scales.
fn pack_words<const BITS: usize>(columns: &Columns, values: &mut [u8]) -> [f16; LANES] {
    let half = half(BITS);
    let wanted = best_scales::<BITS>(columns);
    let (scales, inverses) = scales(wanted, half as f32 / (half as f32 + 0.5));
    let mut words = [[0_u32; LANES]; BITS];
    for (number, column) in columns.iter().enumerate() {
        let mut integers = [0; LANES];
        for lane in 0..LANES {
            let q = round(column[lane] * inverses[lane], -half, half - 1) + half;
            integers[lane] = q as u32;
        }
        for Bits { word, at, of, mask } in places::<BITS>(number) {
            for lane in 0..LANES {
                words[word][lane] |= (integers[lane] >> of & mask) << at;
            }
        }
    }
    for (bytes, word) in values.as_chunks_mut().0.iter_mut().zip(words.as_flattened()) {
        *bytes = word.to_le_bytes();
    }
    scales
}

/// The columns of a quad of bytes: of each eight the even ones, then the odd ones.
fn quad(number: usize) -> [usize; 4] {
    std::array::from_fn(|byte| number / 2 * 8 + 2 * byte + number % 2)
}

/// Puts the integers of a group, of `bits` bits each, into row `lane` of a block's.
pub(crate) fn place(bits: usize, weights: &mut [u8], lane: usize, integers: &[u8; GROUP]) {
    fn words<const BITS: usize>(weights: &mut [u8], lane: usize, integers: &[u8; GROUP]) {
        let mut words = [0; BITS];
        unroll!(EIGHT, {
            unroll!(I, {
                let integer = u32::from(integers[8 * EIGHT + I]);
                for Bits { word, at, of, mask } in const { places::<BITS>(8 * EIGHT + I) } {
                    words[word] |= (integer >> of & mask) << at;
                }
            });
        }, 0 1 2 3);
        let of_lanes = weights.as_chunks_mut().0.chunks_exact_mut(LANES);
        for (of_lanes, word) in of_lanes.zip(words) {
            of_lanes[lane] = word.to_le_bytes();
        }
    }
    match bits {
        2 => words::<2>(weights, lane, integers),
        3 => words::<3>(weights, lane, integers),
        4 => words::<4>(weights, lane, integers),
        5 => words::<5>(weights, lane, integers),
        6 => words::<6>(weights, lane, integers),
        _ => {
            let words = weights.as_chunks_mut::<4>().0.chunks_exact_mut(LANES);
            for (number, of_lanes) in words.enumerate() {
                of_lanes[lane] = quad(number).map(|column| integers[column]);
            }
        }
    }
}

/// What [`place`] put there.
pub(crate) fn placed(bits: usize, weights: &[u8], lane: usize, column: usize) -> u32 {
    if bits == 8 {
        let (quad, byte) = (column / 8 * 2 + column % 2, column % 8 / 2);
        return weights.as_chunks::<4>().0[quad * LANES + lane][byte].into();
    }
    let mut value = 0;
    for Bits { word, at, of, mask } in places_of(bits, column) {
        let word = u32::from_le_bytes(weights.as_chunks().0[word * LANES + lane]);
        value |= (word >> at & mask) << of;
    }
    value
}

fn places_of(bits: usize, column: usize) -> [Bits; 2] {
    match bits {
        2 => places::<2>(column),
        3 => places::<3>(column),
        4 => places::<4>(column),
        5 => places::<5>(column),
        _ => places::<6>(column),
    }
}

/// Some bits of an integer: those of `mask` from its bit `of` on, from bit `at` of a word on.
struct Bits {
    word: usize,
    at: usize,
    of: usize,
    mask: u32,
}

/// Where a column of a group is.
const fn places<const BITS: usize>(column: usize) -> [Bits; 2] {
    const fn bits(word: usize, at: usize, of: usize, mask: u32) -> Bits {
        Bits { word, at, of, mask }
    }
    let none = bits(0, 0, 0, 0);
    if BITS == 4 {
        return [bits(column / 8, 4 * (column % 8), 0, 15), none];
    }
    if BITS == 2 || BITS == 3 {
        // Pairs as of four bits: column `i` of each eight and column `i + 4`.
        let (pair, half) = (4 * (column / 8) + column % 4, 16 * (column % 8 / 4));
        let low = bits(pair / 8, 2 * (pair % 8) + half, 0, 3);
        return [low, if BITS == 3 { bits(2, pair + half, 2, 1) } else { none }];
    }
    if BITS == 5 {
        let (word, column) = (column / 8, column % 8);
        let fifth = bits(4, 4 * word + column % 4 + 16 * (column / 4), 4, 1);
        return [bits(word, 4 * column, 0, 15), fifth];
    }
    let (pair, half) = (column / 2, 16 * (column % 2));
    if pair < 12 {
        return [bits(pair / 2, 6 * (pair % 2) + half, 0, 63), none];
    }
    let rest = pair - 12;
    [bits(rest, 12 + half, 0, 15), bits(4 + rest / 2, 12 + 2 * (rest % 2) + half, 4, 3)]
}

/// Half as many integers as `bits` bits have.
const fn half(bits: usize) -> i32 {
    1 << (bits - 1)
}

/// Quantises one row: `values` is `[groups, 32]` i8, `scales` is `[groups]`. Missing columns become
/// zeros.
///
/// # Panics
///
/// When the outputs have another size.
pub fn pack_int8_row(row: &[f32], values: &mut [u8], scales: &mut [f16]) {
    let values = values.as_chunks_mut::<GROUP>().0;
    row_groups(row, values, scales, |columns, values| {
        let (scales, inverses) = self::scales(int8_scales(columns), INT8_LEAST);
        for (i, column) in columns.iter().enumerate() {
            for (lane, values) in values.iter_mut().enumerate() {
                values[i] = round(column[lane] * inverses[lane], -127, 127) as u8;
            }
        }
        scales
    });
}

/// Quantises one row: `values` is `[groups, 16]` bytes, the low half of byte `i` being column
/// `2 * i` of the group and the high half the next, in two's complement; `scales` is `[groups]`.
/// Missing columns become zeros.
///
/// # Panics
///
/// As [`pack_int8_row`].
pub fn pack_int4_row(row: &[f32], values: &mut [u8], scales: &mut [f16]) {
    let values = values.as_chunks_mut::<{ GROUP / 2 }>().0;
    row_groups(row, values, scales, |columns, values| {
        let (scales, inverses) = self::scales(best_scales::<4>(columns), INT4_LEAST);
        for (i, pair) in columns.as_chunks::<2>().0.iter().enumerate() {
            for (lane, values) in values.iter_mut().enumerate() {
                let [low, high] =
                    [0, 1].map(|at| round(pair[at][lane] * inverses[lane], -8, 7) as u8 & 15);
                values[i] = low | high << 4;
            }
        }
        scales
    });
}

/// A group that is quantised already: its integers, and the scale that makes weights of them.
pub type QuantisedGroup = ([i8; GROUP], f16);

/// As [`pack_int8_row`], of a row that is quantised already.
///
/// # Panics
///
/// As [`pack_int8_row`].
pub fn pack_quantised_int8_row(row: &[QuantisedGroup], values: &mut [u8], scales: &mut [f16]) {
    let values = values.as_chunks_mut::<GROUP>().0;
    assert_eq!((values.len(), scales.len()), (row.len(), row.len()), "groups");
    for (((integers, scale), values), stored) in row.iter().zip(values).zip(scales) {
        *values = integers.map(|q| q as u8);
        *stored = *scale;
    }
}

/// As [`pack_int4_row`], of a row that is quantised already.
///
/// # Panics
///
/// As [`pack_int8_row`].
pub fn pack_quantised_int4_row(row: &[QuantisedGroup], values: &mut [u8], scales: &mut [f16]) {
    let values = values.as_chunks_mut::<{ GROUP / 2 }>().0;
    assert_eq!((values.len(), scales.len()), (row.len(), row.len()), "groups");
    for (((integers, scale), values), stored) in row.iter().zip(values).zip(scales) {
        for (byte, [low, high]) in values.iter_mut().zip(integers.as_chunks().0) {
            *byte = *low as u8 & 15 | (*high as u8) << 4;
        }
        *stored = *scale;
    }
}

/// Hands `pack` the groups of a row, up to [`LANES`] at a time, as [`Columns`] of which each lane is
/// one group, with the scales and values that they become.
fn row_groups<T>(
    row: &[f32],
    values: &mut [T],
    scales: &mut [f16],
    pack: impl Fn(&Columns, &mut [T]) -> [f16; LANES],
) {
    let groups = row.len().div_ceil(GROUP);
    assert_eq!(values.len(), groups, "groups of values");
    assert_eq!(scales.len(), groups, "scales");
    let some = row.chunks(LANES * GROUP).zip(values.chunks_mut(LANES));
    for ((row, values), scales) in some.zip(scales.chunks_mut(LANES)) {
        let mut columns = [[0.0; LANES]; GROUP];
        for (lane, group) in row.chunks(GROUP).enumerate() {
            for (column, weight) in columns.iter_mut().zip(group) {
                column[lane] = *weight;
            }
        }
        let of_lanes = pack(&columns, values);
        scales.copy_from_slice(&of_lanes[..scales.len()]);
    }
}

/// Group `group` of every row, with rows innermost.
fn transpose(rows: &[&[f32]], group: usize) -> Columns {
    let mut columns = [[0.0; LANES]; GROUP];
    for (lane, row) in rows.iter().enumerate() {
        let row = &row[group * GROUP..];
        if let Some(row) = row.first_chunk::<GROUP>() {
            for column in 0..GROUP {
                columns[column][lane] = row[column];
            }
        } else {
            for (column, weight) in columns.iter_mut().zip(row) {
                column[lane] = *weight;
            }
        }
    }
    columns
}

/// The least and the largest weight of each row, both NaN when the row has one that is not finite.
fn extremes(columns: &Columns) -> ([f32; LANES], [f32; LANES]) {
    let (mut low, mut high, mut poison) = ([0.0; LANES], [0.0; LANES], [0.0; LANES]);
    for column in columns {
        for lane in 0..LANES {
            let weight = column[lane];
            low[lane] = if weight < low[lane] { weight } else { low[lane] };
            high[lane] = if weight > high[lane] { weight } else { high[lane] };
            poison[lane] += weight * 0.0;
        }
    }
    for lane in 0..LANES {
        low[lane] += poison[lane];
        high[lane] += poison[lane];
    }
    (low, high)
}

/// Of the factor by which a scale may be too small: half a step beyond the largest integer.
const INT8_LEAST: f32 = 127.0 / 127.5;
const INT4_LEAST: f32 = 8.0 / 8.5;

/// For each row the scale that makes its largest weight the largest integer.
fn int8_scales(columns: &Columns) -> [f32; LANES] {
    let (low, high) = extremes(columns);
    let mut scales = [0.0; LANES];
    for lane in 0..LANES {
        scales[lane] = if high[lane] > -low[lane] { high[lane] } else { -low[lane] } / 127.0;
    }
    scales
}

/// The `wanted` scales as they are stored, none of them smaller than by the factor `least`, and
/// their inverses; 0 for zero and NaN.
fn scales(wanted: [f32; LANES], least: f32) -> ([f16; LANES], [f32; LANES]) {
    let (mut scales, mut inverses) = ([f16::ZERO; LANES], [0.0; LANES]);
    for lane in 0..LANES {
        let mut scale = f16::from_f32(wanted[lane]);
        // A subnormal f16 is coarse: rounded down, it would clip the largest weight.
        if scale.to_f32().abs() < wanted[lane].abs() * least {
            scale = f16::from_bits(scale.to_bits() + 1);
        }
        if !scale.is_finite() {
            scale = f16::NAN;
        }
        scales[lane] = scale;
        let scale = scale.to_f32();
        inverses[lane] = if scale == 0.0 || scale.is_nan() { 0.0 } else { 1.0 / scale };
    }
    (scales, inverses)
}

/// For each row the scale that leaves the least squared error, of those that its largest weight
/// and [`STRETCHES`] suggest.
///
/// With the integers `q` that a first scale gives, the best scale is `sum(w q) / sum(q q)`, and
/// it leaves `sum(w w) - sum(w q)^2 / sum(q q)`.
fn best_scales<const BITS: usize>(columns: &Columns) -> [f32; LANES] {
    let half = half(BITS);
    let (low, high) = extremes(columns);
    let (mut best, mut most) = ([0.0; LANES], [0.0; LANES]);
    for stretch in STRETCHES {
        let mut inverses = [0.0; LANES];
        for lane in 0..LANES {
            let largest = if high[lane] > -low[lane] { high[lane] } else { low[lane] };
            inverses[lane] = if largest == 0.0 { 0.0 } else { (stretch - half as f32) / largest };
        }
        let (mut products, mut squares) = ([0.0; LANES], [0.0; LANES]);
        for column in columns {
            for lane in 0..LANES {
                let q = round(column[lane] * inverses[lane], -half, half - 1) as f32;
                products[lane] += column[lane] * q;
                squares[lane] += q * q;
            }
        }
        for lane in 0..LANES {
            let scale = products[lane] / squares[lane];
            let explained = products[lane] * scale;
            // Not for a rounding error: powers of two stay exact.
            if explained > most[lane] * 1.000_001 {
                (best[lane], most[lane]) = (scale, explained);
            }
        }
    }
    for lane in 0..LANES {
        best[lane] += low[lane] * 0.0;
    }
    best
}

/// What the weight of largest magnitude is stretched to before rounding, from the least integer on.
/// On normally distributed weights that integer alone leaves an error of 8.40% in 4 bits (as
/// llama.cpp has it, without the best scale, 8.60%), these three 8.15%, and sixteen of them 8.09%.
const STRETCHES: [f32; 3] = [0.0, 0.6, -0.6];

/// The nearest integer, ties to even, within `low..=high`; `low` for NaN.
#[inline(always)]
fn round(value: f32, low: i32, high: i32) -> i32 {
    // A float of this size has no fraction, so that adding it rounds.
    const WHOLE: f32 = 12_582_912.0;
    let value = if value > low as f32 { value } else { low as f32 };
    let value = if value < high as f32 { value } else { high as f32 };
    (value + WHOLE).to_bits() as i32 - WHOLE.to_bits() as i32
}

//! Integers in two parts: the high four bits in blocks, the low ones row by row.
//!
//! With `half` half as many integers as a format has, `q + half` is `2^s * n + l`: `n` has four
//! bits, `l` the other `s`. All `n` are as a matrix of int4, which says nearly which row has the
//! largest product; only of rows that may have it the `l` are wanted. So these lie in rows, and for
//! each of them there is the most that they can add.

use half::f16;

use super::{Bits, half, places};
use crate::format::{CHUNK, Format, GROUP, LANES, SCALES};

/// Splits a block that [`pack_block`](super::pack_block) stored, of `columns` columns.
///
/// - `coarse` becomes a block of [`Format::Int4`] whose nibbles are the high bits `n`, with the
///   same scales.
/// - `fine` becomes [`LANES`] rows of [`Format::fine_row_bytes`], one behind the other. A row is
///   chunks of 512 columns, the last of them padded with zeros: first the low bits `l` of its 16
///   groups, little-endian u32 `[s, 16]`, column `i` of a group being in `s` bits from bit
///   `s i % 32` of word `s i / 32` on; then the groups' scales, `[16]` f16.
/// - `norms` become the least f32, or nearly, that are no smaller than the euclidean norm of
///   `scale * (l - (2^s - 1) / 2)` over each row's columns.
///
/// # Panics
///
/// When the format is not [splittable](Format::is_splittable), or `block`, `coarse` or `fine` have
/// another size than so many columns want.
pub fn split_block(
    format: Format,
    block: &[u8],
    columns: usize,
    coarse: &mut [u8],
    fine: &mut [u8],
    norms: &mut [f32; LANES],
) {
    assert_eq!(block.len(), format.block_bytes(columns), "bytes of a block");
    assert_eq!(coarse.len(), Format::Int4.block_bytes(columns), "bytes of a coarse block");
    assert_eq!(fine.len(), LANES * format.fine_row_bytes(columns), "bytes of fine rows");
    let split = match format {
        Format::Int8 => split_group::<4>,
        Format::Int6 => split_group::<2>,
        _ => panic!("{format:?} weights can't be split"),
    };
    let row_bytes = format.fine_row_bytes(columns);
    let word_bytes = LANES * size_of::<u32>();
    let chunk_bytes = format.fine_bits() * word_bytes + SCALES;
    fine.fill(0);
    let mut squares = [0.0; LANES];
    let groups = block.chunks_exact(format.group_bytes());
    let coarse = coarse.chunks_exact_mut(Format::Int4.group_bytes());
    for (group, (from, coarse)) in groups.zip(coarse).enumerate() {
        let (values, scales) = from.split_at(from.len() - SCALES);
        let (coarse_values, coarse_scales) = coarse.split_at_mut(coarse.len() - SCALES);
        coarse_scales.copy_from_slice(scales);
        let real = GROUP.min(columns - group * GROUP);
        let (words, of_group) = split(values, real, coarse_values);
        for (lane, scale) in scales.as_chunks::<2>().0.iter().enumerate() {
            let chunk = &mut fine[lane * row_bytes + group / LANES * chunk_bytes..][..chunk_bytes];
            for (number, word) in words[..format.fine_bits()].iter().enumerate() {
                let word = word[lane].to_le_bytes();
                let at = number * word_bytes + group % LANES * word.len();
                chunk[at..][..word.len()].copy_from_slice(&word);
            }
            let at = chunk_bytes - SCALES + group % LANES * scale.len();
            chunk[at..][..scale.len()].copy_from_slice(scale);
            let half_step = f64::from(f16::from_le_bytes(*scale)) / 2.0;
            squares[lane] += half_step * half_step * f64::from(of_group[lane]);
        }
    }
    // Rounded up by more than any rounding above.
    *norms = squares.map(|square| (square.sqrt() * 1.000_001) as f32);
}

/// Splits a group of a block: writes its coarse values, returns the words of the fine ones, of
/// which there are `S`, and the sum of `(2 l - (2^S - 1))^2` of the first `real` columns.
fn split_group<const S: usize>(
    values: &[u8],
    real: usize,
    coarse: &mut [u8],
) -> ([[u32; LANES]; 4], [u32; LANES]) {
    let (mut high, mut low, mut squares) = ([[0; LANES]; 4], [[0; LANES]; 4], [0; LANES]);
    for column in 0..GROUP {
        let stored = stored::<S>(values, column);
        for lane in 0..LANES {
            let (n, l) = (stored[lane] >> S, stored[lane] & ((1 << S) - 1));
            high[column / 8][lane] |= n << (4 * (column % 8));
            low[S * column / 32][lane] |= l << (S * column % 32);
            let centred = 2 * l as i32 - ((1 << S) - 1);
            squares[lane] += if column < real { (centred * centred) as u32 } else { 0 };
        }
    }
    for (bytes, word) in coarse.as_chunks_mut().0.iter_mut().zip(high.as_flattened()) {
        *bytes = word.to_le_bytes();
    }
    (low, squares)
}

/// `q + half` of a column of each lane, of integers that have `S` bits more than four.
#[inline(always)]
pub(super) fn stored<const S: usize>(values: &[u8], column: usize) -> [u32; LANES] {
    if S == 4 {
        let column = &values.as_chunks::<LANES>().0[column];
        return column.map(|q| (i32::from(q as i8) + half(8)) as u32);
    }
    let words = values.as_chunks::<4>().0.as_chunks::<LANES>().0;
    let mut stored = [0; LANES];
    for Bits { word, at, of, mask } in places::<6>(column) {
        for lane in 0..LANES {
            stored[lane] |= (u32::from_le_bytes(words[word][lane]) >> at & mask) << of;
        }
    }
    stored
}

/// Row `lane` of what [`split_block`] made, as f32, from its coarse block and its one fine row: as
/// [`unpack_row`](super::unpack_row) has it of the whole block.
///
/// # Panics
///
/// As [`split_block`], and when `lane` is none.
pub fn unpack_split_row(format: Format, coarse: &[u8], fine: &[u8], lane: usize, row: &mut [f32]) {
    assert!(lane < LANES, "row {lane} of a block of {LANES}");
    let shift = format.fine_bits();
    assert!(format.is_splittable(), "{format:?} weights can't be split");
    assert_eq!(coarse.len(), Format::Int4.block_bytes(row.len()), "bytes of a coarse block");
    assert_eq!(fine.len(), format.fine_row_bytes(row.len()), "bytes of a fine row");
    let half = half(4 + shift);
    let chunks = fine.chunks_exact(format.fine_row_bytes(CHUNK));
    let groups = coarse.chunks_exact(Format::Int4.group_bytes());
    for (number, (group, row)) in groups.zip(row.chunks_mut(GROUP)).enumerate() {
        let chunk = chunks.clone().nth(number / LANES).expect("a chunk of each sixteen groups");
        let (high, scales) = group.split_at(group.len() - SCALES);
        let scale = f16::from_le_bytes(scales.as_chunks().0[lane]).to_f32();
        let bits = |words: &[u8], lane: usize, bits: usize, column: usize| {
            let word = words.as_chunks().0[bits * column / 32 * LANES + lane];
            (u32::from_le_bytes(word) >> (bits * column % 32)) as i32 & ((1 << bits) - 1)
        };
        for (column, weight) in row.iter_mut().enumerate() {
            let n = bits(high, lane, 4, column);
            let l = bits(chunk, number % LANES, shift, column);
            *weight = ((n << shift) + l - half) as f32 * scale;
        }
    }
}

#[cfg(test)]
mod tests {
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{Rng, SeedableRng};

    use super::super::{pack_block, unpack_row};
    use super::*;

    const FORMATS: [Format; 2] = [Format::Int8, Format::Int6];

    struct Parts {
        coarse: Vec<u8>,
        fine: Vec<u8>,
        norms: [f32; LANES],
    }

    fn split(format: Format, block: &[u8], columns: usize) -> Parts {
        let mut coarse = vec![0xa5; Format::Int4.block_bytes(columns)];
        let mut fine = vec![0xa5; LANES * format.fine_row_bytes(columns)];
        let mut norms = [f32::NAN; LANES];
        split_block(format, block, columns, &mut coarse, &mut fine, &mut norms);
        Parts { coarse, fine, norms }
    }

    fn packed(format: Format, columns: usize, weight: impl FnMut() -> f32) -> Vec<u8> {
        let weights: Vec<f32> = std::iter::repeat_with(weight).take(LANES * columns).collect();
        let rows: Vec<&[f32]> = weights.chunks(columns).collect();
        let mut block = vec![0; format.block_bytes(columns)];
        pack_block(format, &rows, &mut block);
        block
    }

    fn random(seed: usize) -> impl FnMut() -> f32 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed as u64);
        move || rng.next_u32() as f32 / (1_u64 << 31) as f32 - 1.0
    }

    #[test]
    fn both_parts_are_the_whole() {
        for format in FORMATS {
            for columns in [1, 32, 40, 512, 577, 2048] {
                let block = packed(format, columns, random(columns));
                let Parts { coarse, fine, norms } = split(format, &block, columns);
                let fine_rows = fine.chunks(format.fine_row_bytes(columns));
                for (lane, fine) in fine_rows.enumerate() {
                    let [mut whole, mut parts, mut high] =
                        [0, 1, 2].map(|_| vec![f32::NAN; columns]);
                    unpack_row(format, &block, lane, &mut whole);
                    unpack_split_row(format, &coarse, fine, lane, &mut parts);
                    assert_eq!(whole, parts, "{format:?} [{lane}, {columns}]");

                    // The coarse part is int4 of larger steps, and the norm is of what it lacks.
                    unpack_row(Format::Int4, &coarse, lane, &mut high);
                    let steps = (1 << format.fine_bits()) as f64;
                    let groups = coarse.chunks(Format::Int4.group_bytes());
                    let scales = groups.map(|group| {
                        let scales = group[group.len() - SCALES..].as_chunks().0;
                        f64::from(f16::from_le_bytes(scales[lane]))
                    });
                    let lacks = whole.chunks(GROUP).zip(high.chunks(GROUP)).zip(scales);
                    let squares = lacks.flat_map(|((whole, high), scale)| {
                        whole.iter().zip(high).map(move |(&whole, &high)| {
                            let lacks = f64::from(whole) - steps * f64::from(high);
                            (lacks - scale * (steps - 1.0) / 2.0).powi(2)
                        })
                    });
                    let norm = squares.sum::<f64>().sqrt();
                    let stored = f64::from(norms[lane]);
                    assert!(
                        norm <= stored && stored <= norm * 1.000_01,
                        "{format:?} [{lane}, {columns}]: {stored}, not {norm}"
                    );
                }
            }
        }
    }

    /// The last chunk is zeros behind the columns, scales too.
    #[test]
    fn missing_groups_are_zeros() {
        for format in FORMATS {
            let block = packed(format, 545, random(1));
            let fine = split(format, &block, 545).fine;
            let chunk_bytes = format.fine_row_bytes(CHUNK);
            for row in fine.chunks(format.fine_row_bytes(545)) {
                let (words, scales) = row[chunk_bytes..].split_at(chunk_bytes - SCALES);
                for words in words.chunks(LANES * 4) {
                    assert!(words[2 * 4..].iter().all(|&byte| byte == 0), "{format:?}");
                }
                assert!(scales[..4].iter().any(|&byte| byte != 0), "{format:?}");
                assert!(scales[4..].iter().all(|&byte| byte == 0), "{format:?}");
            }
        }
    }

    #[test]
    fn rows_of_zeros_have_no_norm_and_nan_has_none_that_is_a_number() {
        for format in FORMATS {
            let zeros = split(format, &packed(format, 40, || 0.0), 40);
            assert_eq!(zeros.norms, [0.0; LANES]);
            let mut weights = random(2);
            let mut count = 0;
            let block = packed(format, 40, || {
                count += 1;
                if count == 50 { f32::NAN } else { weights() }
            });
            let norms = split(format, &block, 40).norms;
            for (lane, norm) in norms.into_iter().enumerate() {
                assert_eq!(norm.is_nan(), lane == 1, "{format:?} [{lane}]: {norm}");
            }
        }
    }
}

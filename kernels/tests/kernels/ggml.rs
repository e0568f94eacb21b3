//! ggml's block types: the values that it has, in the order of products.

use half::f16;
use kernels::ggml::{pack_rows, unpack_row};
use kernels::{Format, LANES};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::weights::Weights;

/// The levels of IQ4_NL.
const IQ4: [f32; 16] = [
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0,
    89.0, 113.0,
];

/// Each with its columns and bytes of a block, and where it has f16.
const TYPES: [(Format, usize, usize, &[usize]); 15] = [
    (Format::Int8, 32, 34, &[0]),
    (Format::Int4, 32, 18, &[0]),
    (Format::Q4_1, 32, 20, &[0, 2]),
    (Format::Q5_0, 32, 22, &[0]),
    (Format::Q5_1, 32, 24, &[0, 2]),
    (Format::Q4K, 256, 144, &[0, 2]),
    (Format::Q5K, 256, 176, &[0, 2]),
    (Format::Q6K, 256, 210, &[208]),
    (Format::Affine4, 64, 36, &[0, 2]),
    (Format::Zeroed4, 128, 68, &[0]),
    (Format::Q2K, 256, 84, &[80, 82]),
    (Format::Q3K, 256, 110, &[108]),
    (Format::Iq4Nl, 32, 18, &[0]),
    (Format::Iq4Xs, 256, 136, &[0]),
    (Format::Mxfp4, 32, 17, &[]),
];

/// Whether nothing but [`pack_rows`] makes weights of `format`.
pub fn is_only_ggmls(format: Format) -> bool {
    !matches!(format, Format::Int8 | Format::Int4)
        && TYPES.iter().any(|(known, ..)| *known == format)
}

fn type_of(format: Format) -> (usize, usize, &'static [usize]) {
    let (_, columns, bytes, halves) = *TYPES.iter().find(|(known, ..)| *known == format).unwrap();
    (columns, bytes, halves)
}

/// Random blocks of as many columns or a few more, packed.
pub fn random(format: Format, columns: usize, blocks: usize, rng: &mut ChaCha8Rng) -> Weights {
    let columns = columns.next_multiple_of(type_of(format).0);
    let rows = (0..blocks * LANES).map(|_| random_row(format, columns, rng)).collect();
    packed(format, columns, rows)
}

/// Rows of whole blocks of kernels.
fn packed(format: Format, columns: usize, rows: Vec<Vec<u8>>) -> Weights {
    let blocks = rows.len() / LANES;
    let mut bytes = vec![0; blocks * format.block_bytes(columns)];
    for (rows, block) in rows.chunks(LANES).zip(bytes.chunks_mut(format.block_bytes(columns))) {
        let rows: Vec<&[u8]> = rows.iter().map(Vec::as_slice).collect();
        pack_rows(format, columns, &rows, block);
    }
    let rows = rows.iter().map(|row| values(format, row)).collect();
    Weights { format, columns, blocks, bytes, rows }
}

/// Every group has the largest integers and scales that are integers, of one sign or the other in turn: their
/// sums with the largest activations have to fit.
pub fn largest(format: Format) -> Weights {
    let rows = (0..LANES).map(|lane| {
        let (least, scale) = [(true, 0x80), (true, 0x7f), (false, 0x80), (false, 0x7f)][lane % 4];
        let mut row = vec![if least { 0 } else { 0xff }; type_of(format).1];
        match format {
            Format::Q6K => row[192..208].fill(scale),
            // -32 or 31, of which the low four bits are first.
            Format::Q3K => row[96..108].fill(if scale == 0x80 { 0 } else { 0xff }),
            _ => panic!("{format:?} has no integers for scales"),
        }
        for &at in type_of(format).2 {
            row[at..at + 2].copy_from_slice(&f16::ONE.to_le_bytes());
        }
        row
    });
    packed(format, type_of(format).0, rows.collect())
}

/// Any bits, but scales that are small numbers of either sign.
fn random_row(format: Format, columns: usize, rng: &mut ChaCha8Rng) -> Vec<u8> {
    let (of_block, bytes, halves) = type_of(format);
    let mut row = vec![0; columns / of_block * bytes];
    rng.fill_bytes(&mut row);
    for block in row.chunks_mut(bytes) {
        for &at in halves {
            let scale = f16::from_f32(crate::weights::random(rng) * 0.01);
            block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
        }
        if format == Format::Zeroed4 {
            let zero = f16::from_f32(-f32::from(block[2] & 15));
            block[2..4].copy_from_slice(&zero.to_le_bytes());
        }
        if format == Format::Mxfp4 {
            block[0] = 110 + block[0] % 16;
        }
    }
    row
}

/// The values of a row, by the definitions of `ggml-quants.c`, one at a time.
fn values(format: Format, row: &[u8]) -> Vec<f32> {
    let (of_block, bytes, _) = type_of(format);
    let blocks = row.chunks(bytes);
    blocks.flat_map(|block| (0..of_block).map(|i| value(format, block, i))).collect()
}

fn value(format: Format, block: &[u8], i: usize) -> f32 {
    let half = |at: usize| f16::from_le_bytes([block[at], block[at + 1]]).to_f32();
    let bit = |byte: u8, bit: usize| i32::from(byte >> bit & 1);
    // Of 32 columns, the first half low.
    let nibble = |at: usize| {
        let byte = block[at + i % 16];
        i32::from(if i % 32 < 16 { byte & 15 } else { byte >> 4 })
    };
    // Of 256 columns, 64 to 32 bytes.
    let nibble_of_64 = |at: usize| {
        let byte = block[at + i / 64 * 32 + i % 32];
        i32::from(if i % 64 < 32 { byte & 15 } else { byte >> 4 })
    };
    // Of 128 columns, 32 bytes.
    let two_bits =
        |at: usize| i32::from(block[at + i / 128 * 32 + i % 32] >> (2 * (i % 128 / 32)) & 3);
    // Scale and minimum of 32 columns, six bits each, in twelve bytes.
    let six_bits = || {
        let (packed, j) = (&block[4..16], i / 32);
        let [scale, minimum] = match j < 4 {
            true => [packed[j] & 63, packed[j + 4] & 63],
            false => [
                (packed[j + 4] & 15) | ((packed[j - 4] >> 6) << 4),
                (packed[j + 4] >> 4) | ((packed[j] >> 6) << 4),
            ],
        };
        (half(0) * f32::from(scale), half(2) * f32::from(minimum))
    };
    match format {
        Format::Int8 => half(0) * f32::from(block[2 + i] as i8),
        Format::Int4 => half(0) * (nibble(2) - 8) as f32,
        Format::Q4_1 => half(0) * nibble(4) as f32 + half(2),
        Format::Q5_0 => half(0) * (nibble(6) + 16 * bit(block[2 + i / 8], i % 8) - 16) as f32,
        Format::Q5_1 => half(0) * (nibble(8) + 16 * bit(block[4 + i / 8], i % 8)) as f32 + half(2),
        Format::Q4K => {
            let (scale, minimum) = six_bits();
            scale * nibble_of_64(16) as f32 - minimum
        }
        Format::Q5K => {
            let (scale, minimum) = six_bits();
            let q = nibble_of_64(48) + 16 * bit(block[16 + i % 32], i / 32);
            scale * q as f32 - minimum
        }
        Format::Q6K => {
            let (of_128, j) = (i / 128, i % 128);
            let low = block[of_128 * 64 + j % 64];
            let low = if j < 64 { low & 15 } else { low >> 4 };
            let high = block[128 + of_128 * 32 + j % 32] >> (2 * (j / 32)) & 3;
            let q = i32::from(low | high << 4) - 32;
            half(208) * f32::from(block[192 + i / 16] as i8) * q as f32
        }
        Format::Q2K => {
            let q = two_bits(16);
            let byte = block[i / 16];
            half(80) * f32::from(byte & 15) * q as f32 - half(82) * f32::from(byte >> 4)
        }
        Format::Q3K => {
            let q = two_bits(32) + 4 * bit(block[i % 32], i / 32) - 4;
            let (packed, part) = (&block[96..108], i / 16);
            let low = if part < 8 { packed[part] & 15 } else { packed[part - 8] >> 4 };
            let high = packed[8 + part % 4] >> (2 * (part / 4)) & 3;
            half(108) * (i32::from(low | high << 4) - 32) as f32 * q as f32
        }
        Format::Iq4Nl => half(0) * IQ4[nibble(2) as usize],
        Format::Iq4Xs => {
            let part = i / 32;
            let low = block[4 + part / 2] >> (4 * (part % 2)) & 15;
            let high = u16::from_le_bytes([block[2], block[3]]) >> (2 * part) & 3;
            let scale = (i32::from(low) | i32::from(high) << 4) - 32;
            half(0) * scale as f32 * IQ4[nibble(8 + 16 * part) as usize]
        }
        Format::Mxfp4 => {
            let q = nibble(1);
            let size = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][q as usize % 8];
            let sign = if q < 8 { 1.0 } else { -1.0 };
            sign * size * 2f32.powi(i32::from(block[0]) - 127)
        }
        Format::Affine4 => half(0) * nibble(4 + i / 32 * 16) as f32 + half(2),
        Format::Zeroed4 => half(0) * (nibble(4 + i / 32 * 16) as f32 + half(2)),
        _ => unreachable!("{format:?} is no type of ggml's"),
    }
}

#[test]
fn what_is_packed_has_the_values_of_the_file() {
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    for (format, of_block, bytes, _) in TYPES {
        for (blocks, rows) in [(1, 16), (3, 16), (2, 5)] {
            let columns = blocks * of_block;
            let given: Vec<_> = (0..rows).map(|_| random_row(format, columns, &mut rng)).collect();
            assert_eq!(format.ggml_row_bytes(columns), Some(blocks * bytes));
            let slices: Vec<&[u8]> = given.iter().map(Vec::as_slice).collect();
            let mut packed = vec![0; format.block_bytes(columns)];
            pack_rows(format, columns, &slices, &mut packed);
            for lane in 0..LANES {
                let mut row = vec![f32::NAN; columns];
                unpack_row(format, &packed, lane, &mut row);
                let expected =
                    given.get(lane).map_or(vec![0.0; columns], |row| values(format, row));
                for (i, (ours, theirs)) in row.iter().zip(&expected).enumerate() {
                    assert!(ours == theirs, "{format:?} row {lane}, {i}: {ours}, not {theirs}");
                }
            }
        }
    }
}

/// Packed weights are hardly larger than in the file.
#[test]
fn packed_weights_take_three_percent_more_at_most() {
    for (format, ..) in TYPES {
        let (packed, file) = (format.block_bytes(2048), format.ggml_row_bytes(2048).unwrap());
        assert!(packed <= file * LANES * 103 / 100, "{format:?}: {packed}, {}", file * LANES);
    }
}

//! Weights as small integers.

use half::f16;
use kernels::quantise::{
    pack_block, pack_int4_row, pack_int8_row, pack_quantised_int4_row, pack_quantised_int8_row,
    unpack_row,
};
use kernels::{Format, GROUP, LANES};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

use crate::weights::random;

/// Every format, with the largest magnitude of `q`.
const FORMATS: [(Format, f32); 3] =
    [(Format::Int8, 127.0), (Format::Int6, 32.0), (Format::Int4, 8.0)];

/// Packs and unpacks: the restored rows and the scales `[groups, 16]`.
fn round_trip(format: Format, rows: &[Vec<f32>]) -> (Vec<Vec<f32>>, Vec<f16>) {
    let mut block = vec![0xa5; format.block_bytes(rows[0].len())];
    let given: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
    pack_block(format, &given, &mut block);
    let mut restored = vec![vec![0.0; rows[0].len()]; rows.len()];
    for (lane, row) in restored.iter_mut().enumerate() {
        unpack_row(format, &block, lane, row);
    }
    let groups = block.chunks_exact(format.block_bytes(GROUP));
    let scales = groups.flat_map(|group| group[group.len() - 2 * LANES..].as_chunks().0);
    (restored, scales.map(|scale| f16::from_le_bytes(*scale)).collect())
}

fn random_rows(count: usize, columns: usize, size: f32) -> Vec<Vec<f32>> {
    let mut rng = ChaCha8Rng::seed_from_u64(columns as u64);
    let mut row = || (0..columns).map(|_| size * random(&mut rng)).collect();
    (0..count).map(|_| row()).collect()
}

#[test]
fn the_error_is_at_most_half_a_scale_where_nothing_is_clipped() {
    for (format, largest) in FORMATS {
        for (count, columns, size) in
            [(16, 64, 1.0), (3, 33, 100.0), (16, 100, 1e-3), (1, 1, 0.3), (16, 32, 3e-6)]
        {
            let rows = random_rows(count, columns, size);
            let (restored, scales) = round_trip(format, &rows);
            for (lane, (row, restored)) in rows.iter().zip(&restored).enumerate() {
                for (column, (&weight, &restored)) in row.iter().zip(restored).enumerate() {
                    let scale = scales[column / GROUP * LANES + lane].to_f32();
                    let error = (weight - restored).abs() / scale.abs();
                    // What is beyond the integers is clipped, and rounding the scale to f16
                    // moves it a little further.
                    let q = restored / scale;
                    let (least, most) = (-largest, largest - 1.0);
                    let clipped = largest < 127.0 && (q == least || q == most);
                    let limit = if clipped { 2.0 } else { 0.57 };
                    assert!(error <= limit, "{weight} became {restored}, scale {scale}");
                }
            }
        }
    }
}

#[test]
fn normally_distributed_weights_keep_the_error_that_their_bits_allow() {
    for ((format, _), most) in FORMATS.into_iter().zip([0.0055, 0.0204, 0.082]) {
        // The sum of twelve uniform numbers is nearly normal.
        let uniform = random_rows(4, 12 * 2048, 1.0);
        let rows: Vec<Vec<f32>> = uniform
            .iter()
            .map(|row| row.as_chunks::<12>().0.iter().map(|of| of.iter().sum()).collect())
            .collect();
        let (restored, _) = round_trip(format, &rows);
        let (mut error, mut size) = (0.0, 0.0);
        for (&weight, restored) in rows.iter().flatten().zip(restored.iter().flatten()) {
            error += (weight - restored).powi(2);
            size += weight.powi(2);
        }
        let error = (error / size).sqrt();
        assert!(error < most, "{error}");
    }
}

#[test]
fn multiples_of_a_scale_are_exact() {
    for (format, largest) in FORMATS {
        let scale = 0.125;
        let row: Vec<f32> = (0..32).map(|i| scale * ((i % 15) as f32 - 7.0)).collect();
        let row: Vec<f32> = row.into_iter().chain([-largest * scale; 32]).collect();
        let mut rows = vec![row; 5];
        rows[0][3] = -largest * scale;
        rows[2][40] = 0.0;
        rows[0].truncate(64);
        let first = round_trip(format, &rows).0;
        assert_eq!(first[0], rows[0]);
        assert_eq!(first[2][32..], rows[2][32..]);
    }
}

#[test]
fn rows_and_blocks_hold_the_same_numbers() {
    for columns in [1, 31, 32, 33, 512, 545, 1100] {
        let rows = random_rows(3, columns, 2.0);
        let groups = columns.div_ceil(GROUP);
        for (int8, format) in [(true, Format::Int8), (false, Format::Int4)] {
            let (restored, scales) = round_trip(format, &rows);
            for (lane, row) in rows.iter().enumerate() {
                let bytes = groups * if int8 { GROUP } else { GROUP / 2 };
                let mut values = vec![0xa5; bytes];
                let mut own = vec![f16::NAN; groups];
                let pack = if int8 { pack_int8_row } else { pack_int4_row };
                pack(row, &mut values, &mut own);
                for (group, scale) in own.iter().enumerate() {
                    assert_eq!(*scale, scales[group * LANES + lane]);
                }
                let integer = |column: usize| match int8 {
                    true => values[column] as i8,
                    // The nibble's sign is its highest bit.
                    false => ((values[column / 2] >> (4 * (column % 2))) << 4) as i8 >> 4,
                };
                for column in 0..groups * GROUP {
                    let weight = f32::from(integer(column)) * own[column / GROUP].to_f32();
                    let expected = restored[lane].get(column).copied().unwrap_or(0.0);
                    assert_eq!(weight, expected, "{columns} columns: {column}");
                }
            }
        }
    }
}

#[test]
fn zeros_stay_zero_with_zero_scales() {
    for (format, _) in FORMATS {
        let (restored, scales) = round_trip(format, &vec![vec![0.0; 40]; 7]);
        assert!(restored.iter().flatten().all(|&weight| weight == 0.0));
        assert!(scales.iter().all(|&scale| scale == f16::ZERO));
    }
}

#[test]
fn what_f16_cannot_scale_becomes_nan_and_only_its_group() {
    for (format, _) in FORMATS {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e9] {
            let mut rows = vec![vec![0.5; 96]; 16];
            rows[4][40] = bad;
            let (restored, _) = round_trip(format, &rows);
            for (lane, row) in restored.iter().enumerate() {
                for (column, weight) in row.iter().enumerate() {
                    let in_group = lane == 4 && (32..64).contains(&column);
                    assert_eq!(weight.is_nan(), in_group, "{bad}: [{lane}, {column}] {weight}");
                }
            }
        }
    }
}

/// Of groups with minima the errors, as shares of the largest weight of their super-block.
fn nested_errors(rows: &[Vec<f32>]) -> Vec<Vec<f32>> {
    let restored = nested(rows);
    let super_block = 8 * GROUP;
    let of = |(row, restored): (&Vec<f32>, &Vec<f32>)| {
        let blocks = row.chunks(super_block).zip(restored.chunks(super_block));
        let errors = blocks.flat_map(|(row, restored)| {
            let largest = row.iter().fold(f32::MIN_POSITIVE, |most, weight| most.max(weight.abs()));
            row.iter().zip(restored).map(move |(weight, it)| (weight - it).abs() / largest)
        });
        errors.collect()
    };
    rows.iter().zip(&restored).map(of).collect()
}

fn nested(rows: &[Vec<f32>]) -> Vec<Vec<f32>> {
    let columns = rows[0].len();
    let mut block = vec![0xa5; Format::Nested4.block_bytes(columns)];
    let given: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
    pack_block(Format::Nested4, &given, &mut block);
    let mut restored = vec![vec![0.0; columns]; rows.len()];
    for (lane, row) in restored.iter_mut().enumerate() {
        unpack_row(Format::Nested4, &block, lane, row);
    }
    restored
}

/// Uniform weights in -1 to 1 have steps of a fifteenth of two; what is clipped is within two.
#[test]
fn groups_with_minima_have_sixteen_steps_between_their_ends() {
    for (count, columns, size) in
        [(16, 512, 1.0), (3, 33, 100.0), (16, 100, 1e-3), (1, 1, 0.3), (16, 296, 2e-4)]
    {
        let errors = nested_errors(&random_rows(count, columns, size));
        let flat: Vec<f32> = errors.into_iter().flatten().collect();
        let largest = flat.iter().copied().fold(0.0, f32::max);
        assert!(largest < 0.16, "{columns} columns: {largest}");
        let mean = flat.iter().sum::<f32>() / flat.len() as f32;
        assert!(mean < 0.036, "{columns} columns: {mean}");
    }
}

#[test]
fn groups_with_minima_keep_more_of_normally_distributed_weights() {
    let uniform = random_rows(16, 12 * 2048, 0.1);
    let normal =
        |row: &Vec<f32>| row.as_chunks::<12>().0.iter().map(|of| of.iter().sum()).collect();
    let rows: Vec<Vec<f32>> = uniform.iter().map(normal).collect();
    let restored = nested(&rows);
    let (mut error, mut size) = (0.0, 0.0);
    for (weight, restored) in rows.iter().flatten().zip(restored.iter().flatten()) {
        error += (weight - restored).powi(2);
        size += weight.powi(2);
    }
    let error = (error / size).sqrt();
    assert!(error < 0.072, "{error}");
}

#[test]
fn groups_of_one_weight_stay_what_they_are() {
    for weight in [0.0, 0.75, -0.75, 1e-3, -1e-3, 1e5, -1e5] {
        let restored = nested(&vec![vec![weight; 300]; 3]);
        for restored in restored.iter().flatten() {
            assert!((restored - weight).abs() <= 0.003 * weight.abs(), "{weight}: {restored}");
        }
    }
}

/// A group beside one of weights a hundred times as large has steps of its own.
#[test]
fn small_groups_beside_large_ones_are_not_lost() {
    let mut rows = random_rows(16, 256, 0.01);
    for row in &mut rows {
        row[40] = 1.0;
    }
    for (row, restored) in rows.iter().zip(nested(&rows)) {
        for (weight, restored) in row[64..].iter().zip(&restored[64..]) {
            assert!((weight - restored).abs() < 0.002, "{weight}: {restored}");
        }
    }
}

#[test]
fn what_has_no_unit_becomes_nan_and_only_its_super_block() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e9, -1e9] {
        let mut rows = vec![vec![0.5; 600]; 16];
        rows[4][300] = bad;
        for (lane, row) in nested(&rows).iter().enumerate() {
            for (column, weight) in row.iter().enumerate() {
                let with_it = lane == 4 && (256..512).contains(&column);
                assert_eq!(weight.is_nan(), with_it, "{bad}: [{lane}, {column}] {weight}");
            }
        }
    }
}

/// Every integer of a format, the least too, with the scale that it came with.
#[test]
fn what_is_quantised_already_is_packed_as_it_is() {
    for (format, half) in [(Format::Int8, 128), (Format::Int4, 8)] {
        let group = |row: usize, group: usize| {
            let of = |i: usize| ((i * 7 + row * 13 + group * 5) % (2 * half)) as i32 - half as i32;
            let scale = f16::from_bits((row * 997 + group * 31) as u16);
            (std::array::from_fn::<i8, GROUP, _>(|i| of(i) as i8), scale)
        };
        let row: Vec<_> = (0..9).map(|at| group(3, at)).collect();
        let mut scales = vec![f16::ZERO; 9];
        match format {
            Format::Int8 => {
                let mut values = vec![0; 9 * GROUP];
                pack_quantised_int8_row(&row, &mut values, &mut scales);
                assert!(values.iter().map(|q| *q as i8).eq(row.iter().flat_map(|(q, _)| *q)));
            }
            _ => {
                let mut values = vec![0; 9 * GROUP / 2];
                pack_quantised_int4_row(&row, &mut values, &mut scales);
                let both = |byte: &u8| [(*byte << 4) as i8 >> 4, *byte as i8 >> 4];
                assert!(values.iter().flat_map(both).eq(row.iter().flat_map(|(q, _)| *q)));
            }
        }
        assert!(scales.iter().eq(row.iter().map(|(_, scale)| scale)));
    }
}

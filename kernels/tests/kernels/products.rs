//! Products with packed weights.

use half::f16;
use kernels::{Format, GROUP, Isa, LANES, Product, product_for};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

use crate::ggml;
use crate::weights::Weights;

#[test]
fn every_format_and_instruction_set_matches_f64() {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    for format in Format::ALL {
        // Of pairs of columns even numbers and odd ones, whole steps and parts.
        for (columns, blocks) in
            [(1, 1), (2, 1), (32, 9), (40, 3), (74, 4), (100, 5), (577, 2), (2048, 1)]
        {
            let weights = Weights::random(format, columns, blocks, &mut rng);
            for used in 1_usize..=13 {
                weights.check(used.next_multiple_of(4), used, 0, &mut rng);
                weights.check(used, used, 0, &mut rng);
            }
        }
        for blocks in 1..=9 {
            let weights = Weights::random(format, 96, blocks, &mut rng);
            weights.check(1, 1, 16, &mut rng);
            weights.check(4, 3, 5, &mut rng);
            weights.check(16, 10, 5, &mut rng);
        }
    }
}

#[test]
fn more_rows_than_are_copied_at_once() {
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    for format in Format::ALL {
        Weights::random(format, 300, 3, &mut rng).check(32, 30, 3, &mut rng);
        Weights::random(format, 577, 1, &mut rng).check(100, 100, 0, &mut rng);
        Weights::random(format, 40, 5, &mut rng).check(76, 72, 3, &mut rng);
        Weights::random(format, 33, 1, &mut rng).check(260, 257, 0, &mut rng);
    }
}

/// No sum on the way to a result may overflow.
#[test]
fn the_largest_integers_fit() {
    const COLUMNS: usize = GROUP;
    // What rounds to the integers at the ends of the range, to the largest low byte of either
    // sign beside a large high one, and to small ones; a group's last column sets its scale.
    let integers = [32639.0, -32639.0, 32512.0 - 128.0, -32512.0 + 127.0, -32384.0, 128.0, 127.0];
    for format in [Format::Int8, Format::Int6, Format::Int4] {
        let (least, most) = match format {
            Format::Int8 => (-127.0, 127.0),
            Format::Int6 => (-32.0, 31.0),
            _ => (-8.0, 7.0),
        };
        // The last column keeps the scale at 1.
        let rows: Vec<Vec<f32>> = (0..LANES)
            .map(|lane| {
                let weight = |column| match lane {
                    0 => least,
                    1 => most,
                    2 => [least, most][column % 2],
                    3 => [least, most][column / 2 % 2],
                    4 => [least, most][column / 4 % 2],
                    _ => (column as f32 + lane as f32) % (most - least) + least,
                };
                let mut row: Vec<f32> = (0..COLUMNS).map(weight).collect();
                row[COLUMNS - 1] = least;
                row
            })
            .collect();
        let weights = Weights::new(format, COLUMNS, rows.clone());
        assert_eq!(weights.rows, rows, "{format:?}");
        for rows in (1..=8).chain([33]) {
            for first in integers {
                for second in integers {
                    let x: Vec<f32> = (0..rows * COLUMNS)
                        .map(|i| match i % COLUMNS {
                            31 => 32639.0_f32.copysign(first),
                            column => [first, second][column % 2],
                        })
                        .collect();
                    weights.check_with(&x, rows, rows, 0);
                }
            }
        }
    }
}

/// Neither where activations have eight bits.
#[test]
fn the_largest_bytes_fit() {
    const COLUMNS: usize = GROUP;
    let half = |it: f32| f16::from_f32(it).to_le_bytes();
    // Units of one and of zero, sixteen of each, fifteens, and scales of one beside minima of zero.
    let mut bytes = [half(1.0).repeat(LANES), half(0.0).repeat(LANES)].concat();
    bytes.resize(bytes.len() + COLUMNS * LANES / 2, 0xff);
    bytes.extend([[1; LANES], [0; LANES]].concat());
    assert_eq!(bytes.len(), Format::Nested4.block_bytes(COLUMNS));
    let rows = vec![vec![15.0; COLUMNS]; LANES];
    let weights = Weights { format: Format::Nested4, columns: COLUMNS, blocks: 1, bytes, rows };
    for rows in (1..=8).chain([33]) {
        // All columns have the same sign, or runs of so many have the other one: of runs of 4 a sum of 16 bits
        // has one sign alone.
        for alike in [COLUMNS, 8, 4, 2, 1] {
            for largest in [-1.0, 1.0] {
                let x = |i: usize| if (i / alike).is_multiple_of(2) { largest } else { -largest };
                let x: Vec<f32> = (0..rows * COLUMNS).map(x).collect();
                weights.check_with(&x, rows, rows, 0);
            }
        }
    }
}

/// Nor those of eight bits, of which a file of ggml has one more than we make.
#[test]
fn the_largest_signed_bytes_fit() {
    const COLUMNS: usize = GROUP;
    for (format, least) in [(Format::Int8Rounded, -128.0), (Format::Int8, -128.0)] {
        let extremes = [[least; 2], [127.0; 2], [least, 127.0]];
        let row = |lane: usize| (0..COLUMNS).map(|i| extremes[lane % 3][i % 2]).collect();
        let rows: Vec<Vec<f32>> = (0..LANES).map(row).collect();
        // Integers of rows as ggml has them: a scale of one before each group.
        let file: Vec<Vec<u8>> = rows
            .iter()
            .map(|row| {
                let integers = row.iter().map(|it| *it as i8 as u8);
                f16::ONE.to_le_bytes().into_iter().chain(integers).collect()
            })
            .collect();
        let file: Vec<&[u8]> = file.iter().map(Vec::as_slice).collect();
        let mut bytes = vec![0; format.block_bytes(COLUMNS)];
        kernels::ggml::pack_rows(Format::Int8, COLUMNS, &file, &mut bytes);
        let weights = Weights { format, columns: COLUMNS, blocks: 1, bytes, rows };
        for rows in (1..=8).chain([33]) {
            for alike in [COLUMNS, 8, 4, 2, 1] {
                for largest in [-1.0, 1.0] {
                    let x =
                        |i: usize| if (i / alike).is_multiple_of(2) { largest } else { -largest };
                    let x: Vec<f32> = (0..rows * COLUMNS).map(x).collect();
                    weights.check_with(&x, rows, rows, 0);
                }
            }
        }
    }
}

/// Where scales are integers that are multiplied with the weights, neither.
#[test]
fn the_largest_scaled_integers_fit() {
    for format in [Format::Q6K, Format::Q3K] {
        let weights = ggml::largest(format);
        for rows in [1, 2, 8, 33, 64, 76] {
            // The same sign all along, by halves of groups, or in turn.
            for alike in [256, 16, 1] {
                let sign = |i: usize| if (i / alike).is_multiple_of(2) { 1.0 } else { -1.0 };
                let x: Vec<f32> = (0..rows * weights.columns).map(sign).collect();
                weights.check_with(&x, rows, rows, 0);
            }
        }
    }
}

#[test]
fn activations_that_are_not_finite_are_not_hidden() {
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    for format in Format::ALL {
        let weights = Weights::random(format, 100, 1, &mut rng);
        for isa in Isa::all_here() {
            for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut x = vec![1.0; weights.columns];
                x[70] = value;
                let x = weights.bytes_of(&x, isa, 1);
                let mut y = [0f32; LANES];
                let product = Product {
                    weights: weights.bytes.as_ptr(),
                    index: std::ptr::null(),
                    x: x.as_ptr(),
                    y: y.as_mut_ptr(),
                    rows: 1,
                    used: 1,
                    columns: weights.columns,
                    blocks: 1,
                    stride: LANES,
                };
                // SAFETY: this CPU has the instructions, and the buffers have the shapes stated.
                unsafe { product_for(format, isa)(&product) };
                assert!(y.iter().all(|y| !y.is_finite()), "{isa:?} {format:?}: {value} gave {y:?}");
            }
        }
    }
}

/// Each is the only weight of a row.
#[test]
fn every_half_is_widened_as_the_half_crate_does() {
    let halves: Vec<u16> = (0..=u16::MAX).collect();
    let x = 1f32;
    for isa in Isa::all_here() {
        let mut y = vec![f32::NAN; halves.len()];
        let product = Product {
            weights: halves.as_ptr().cast(),
            index: std::ptr::null(),
            x: (&raw const x).cast(),
            y: y.as_mut_ptr(),
            rows: 1,
            used: 1,
            columns: 1,
            blocks: halves.len() / LANES,
            stride: halves.len(),
        };
        // SAFETY: this CPU has the instructions, and the buffers have the shapes stated.
        unsafe { product_for(Format::F16, isa)(&product) };
        for (&bits, &ours) in halves.iter().zip(&y) {
            let theirs = f16::from_bits(bits).to_f32();
            let same = ours == theirs || ours.is_nan() && theirs.is_nan();
            assert!(same, "{isa:?} {bits:#06x}: {ours}");
        }
    }
}

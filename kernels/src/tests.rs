use half::{bf16, f16};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::*;

mod batch;
mod sketch;

/// Uniform in -1.0..1.0.
fn random(rng: &mut ChaCha8Rng) -> f32 {
    rng.next_u32() as f32 / (1_u64 << 31) as f32 - 1.0
}

/// The sum of twelve uniform numbers is nearly normal.
fn normal(rng: &mut ChaCha8Rng) -> f32 {
    (0..12).map(|_| random(rng)).sum()
}

/// Compares all products with those that may be the largest: the others are negative infinity there,
/// and less than the largest. How many there are.
fn count_kept(all: &[f32], some: &[f32], what: &str) -> usize {
    let most = all.iter().fold(f32::NEG_INFINITY, |most, y| most.max(*y));
    let mut kept = 0;
    for (row, (all, some)) in all.iter().zip(some).enumerate() {
        if *some == f32::NEG_INFINITY && *all != *some {
            assert!(*all < most, "{what}: row {row} of {all} is left out");
        } else {
            assert_eq!(all.to_bits(), some.to_bits(), "{what}: row {row}");
            kept += 1;
        }
    }
    assert!(kept > 0, "{what}");
    kept
}

/// Rows of `columns` activations as integers of `format` take them.
fn rounded(format: Format, isa: Isa, alone: bool, x: &[f32], columns: usize) -> Vec<u8> {
    let mut rows = Vec::new();
    for x in x.chunks(columns) {
        let mut row = vec![0u32; rounded_bytes(columns) / size_of::<u32>()];
        // SAFETY: this CPU has the instructions, and the row is as long as it has to be.
        unsafe { round_row(isa, format, alone, x.as_ptr(), columns, row.as_mut_ptr().cast()) };
        rows.extend(row.into_iter().flat_map(u32::to_ne_bytes));
    }
    rows
}

/// Packed weights and what they stand for.
struct Weights {
    format: Format,
    columns: usize,
    blocks: usize,
    bytes: Vec<u8>,
    /// `[blocks * 16, columns]`
    rows: Vec<Vec<f32>>,
}

impl Weights {
    fn random(format: Format, columns: usize, blocks: usize, rng: &mut ChaCha8Rng) -> Self {
        let rows = (0..blocks * LANES)
            .map(|_| {
                let size = 0.01 + random(rng).abs();
                (0..columns).map(|_| size * random(rng)).collect()
            })
            .collect();
        Self::new(format, columns, rows)
    }

    /// Of `rows` as they come nearest to it.
    fn new(format: Format, columns: usize, mut rows: Vec<Vec<f32>>) -> Self {
        let blocks = rows.len() / LANES;
        let mut bytes = Vec::new();
        for block in rows.chunks_mut(LANES) {
            match format {
                Format::F32 | Format::Bf16 | Format::Bf16Rounded | Format::F16 => {
                    for column in 0..columns {
                        for row in block.iter_mut() {
                            let weight = &mut row[column];
                            match format {
                                Format::F32 => bytes.extend(weight.to_le_bytes()),
                                Format::Bf16 | Format::Bf16Rounded => {
                                    let stored = bf16::from_f32(*weight);
                                    *weight = stored.to_f32();
                                    bytes.extend(stored.to_le_bytes());
                                }
                                _ => {
                                    let stored = f16::from_f32(*weight);
                                    *weight = stored.to_f32();
                                    bytes.extend(stored.to_le_bytes());
                                }
                            }
                        }
                    }
                }
                Format::Int8 | Format::Int6 | Format::Int4 => {
                    let mut packed = vec![0; format.block_bytes(columns)];
                    let given: Vec<&[f32]> = block.iter().map(Vec::as_slice).collect();
                    quantise::pack_block(format, &given, &mut packed);
                    for (lane, row) in block.iter_mut().enumerate() {
                        quantise::unpack_row(format, &packed, lane, row);
                    }
                    bytes.extend(packed);
                }
            }
        }
        assert_eq!(bytes.len(), blocks * format.block_bytes(columns));
        Self { format, columns, blocks, bytes, rows }
    }

    /// Rows of activations in the bytes that the format takes, of which `used` meet it.
    fn bytes_of(&self, x: &[f32], isa: Isa, used: usize) -> Vec<u8> {
        match self.format {
            Format::Bf16Rounded => {
                x.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect()
            }
            format if format.is_quantised() => rounded(format, isa, used == 1, x, self.columns),
            _ => x.iter().flat_map(|x| x.to_le_bytes()).collect(),
        }
    }

    /// Activations as the format takes them: integers want 16 bits of them.
    fn rounded(&self, x: &[f32]) -> Vec<f64> {
        const LARGEST: f32 = 127.0 * 257.0;
        let groups = x.chunks(if self.format.is_quantised() { GROUP } else { usize::MAX });
        let round = |group: &[f32]| -> Vec<f64> {
            let largest = group.iter().fold(0f32, |most, x| most.max(x.abs()));
            let scale = f64::from(largest / LARGEST);
            let round = |x: &f32| f64::from((x * (LARGEST / largest)).round_ties_even()) * scale;
            let exact = |x: &f32| f64::from(*x);
            match self.format {
                Format::Int8 | Format::Int6 | Format::Int4 => group.iter().map(round).collect(),
                Format::Bf16Rounded => group.iter().map(|&x| bf16::from_f32(x).into()).collect(),
                _ => group.iter().map(exact).collect(),
            }
        };
        groups.flat_map(round).collect()
    }

    /// Multiplies random activations on every instruction set and compares with f64.
    fn check(&self, rows: usize, used: usize, gap: usize, rng: &mut ChaCha8Rng) {
        let x: Vec<f32> = (0..rows * self.columns).map(|_| random(rng)).collect();
        self.check_with(&x, rows, used, gap);
    }

    fn check_with(&self, x: &[f32], rows: usize, used: usize, gap: usize) {
        const GUARD: f32 = 1234.5;
        let outputs = self.blocks * LANES;
        let stride = outputs + gap;
        for isa in Isa::all_here() {
            let what = format!(
                "{isa:?} {:?} columns {} blocks {} rows {used}/{rows} gap {gap}",
                self.format, self.columns, self.blocks
            );
            let bytes = self.bytes_of(x, isa, used);
            let mut y = vec![GUARD; rows * stride];
            for row in 0..rows {
                y[row * stride..][..outputs].fill(f32::NAN);
            }
            let product = Product {
                weights: self.bytes.as_ptr(),
                index: std::ptr::null(),
                x: bytes.as_ptr(),
                y: y.as_mut_ptr(),
                rows,
                used,
                columns: self.columns,
                blocks: self.blocks,
                stride,
            };
            // SAFETY: this CPU has the instructions, and the buffers have the shapes stated.
            unsafe { product_for(self.format, isa)(&product) };

            for row in 0..rows {
                let (computed, guard) = y[row * stride..][..stride].split_at(outputs);
                assert!(guard.iter().all(|&value| value == GUARD), "{what}: wrote into the gap");
                if row >= used {
                    assert!(
                        computed.iter().all(|&value| value == 0.0),
                        "{what}: padding row {row}"
                    );
                    continue;
                }
                let x = self.rounded(&x[row * self.columns..][..self.columns]);
                for (output, &computed) in computed.iter().enumerate() {
                    let terms = x.iter().zip(&self.rows[output]);
                    let (sum, size) = terms.fold((0.0, 0.0), |(sum, size), (x, &w)| {
                        let term = x * f64::from(w);
                        (sum + term, size + term.abs())
                    });
                    let error = (f64::from(computed) - sum).abs();
                    assert!(
                        error <= 3e-6 * size,
                        "{what}: y[{row}, {output}] = {computed}, not {sum} ({:e})",
                        error / size
                    );
                }
            }
        }
    }
}

#[test]
fn every_format_and_instruction_set_matches_f64() {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    for format in Format::ALL {
        for (columns, blocks) in [(1, 1), (32, 9), (40, 3), (100, 5), (577, 2), (2048, 1)] {
            let weights = Weights::random(format, columns, blocks, &mut rng);
            for (rows, used) in
                [(1, 1), (2, 2), (3, 3), (8, 4), (8, 5), (6, 6), (8, 7), (8, 8), (32, 13)]
            {
                weights.check(rows, used, 0, &mut rng);
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
        for rows in 1..=8 {
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

#[test]
fn activations_that_are_not_finite_are_not_hidden() {
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    for format in Format::ALL {
        let weights = Weights::random(format, 100, 1, &mut rng);
        for isa in Isa::all_here() {
            for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut x = [1.0; 100];
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
                    columns: 100,
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

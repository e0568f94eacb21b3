//! Compressed blocks: all that comes back, and products with them.

use kernels::{
    Format, Isa, LANES, Product, Rows, compress, compressed_product_for, compressed_row,
    decompress, most_bytes,
};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::weights::normal;

/// Bytes that stored blocks are multiples of.
const UNIT: usize = 64;

const FORMATS: [Format; 3] = [Format::F32, Format::Bf16, Format::Bf16Rounded];

/// As weights are.
fn weight(rng: &mut ChaCha8Rng) -> f32 {
    0.01 * normal(rng)
}

/// A packed block of the weights that have these bits as f32, column by column.
fn packed(format: Format, bits: &[u32]) -> Vec<u8> {
    match format {
        Format::F32 => bits.iter().flat_map(|bits| bits.to_le_bytes()).collect(),
        _ => bits.iter().flat_map(|bits| ((bits >> 16) as u16).to_le_bytes()).collect(),
    }
}

/// Compresses and checks that all comes back. The stored size as a part of the packed one.
fn round_trip(format: Format, bits: &[u32]) -> f64 {
    let columns = bits.len() / LANES;
    let block = packed(format, bits);
    let mut stored = vec![7; UNIT];
    compress(format, &block, columns, &mut stored);
    assert!(stored.len().is_multiple_of(UNIT));
    let stored = &stored[UNIT..];
    assert!(stored.len() <= most_bytes(format, columns));
    let mut back = vec![0; block.len()];
    decompress(format, stored, columns, &mut back);
    assert!(back == block, "{format:?}");
    stored.len() as f64 / block.len() as f64
}

#[test]
fn all_bits_come_back() {
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    for format in FORMATS {
        let every_bf16: Vec<u32> = (0..1 << 16).map(|bits| bits << 16 | bits).collect();
        assert!(round_trip(format, &every_bf16) > 1.0, "plain");
        let random: Vec<u32> = (0..1 << 16).map(|_| rng.next_u32()).collect();
        round_trip(format, &random);
        for columns in [8, 16, 24, 2048] {
            let mut bits: Vec<u32> =
                (0..columns * LANES).map(|_| weight(&mut rng).to_bits()).collect();
            round_trip(format, &bits);
            // One lane far larger, one of subnormals, one without low halves.
            for column in bits.chunks_mut(LANES) {
                column[3] = (f32::from_bits(column[3]) * 1e20).to_bits();
                column[4] &= 0x807f_ffff;
                column[5] &= 0xffff_0000;
            }
            for (at, special) in
                [f32::NAN, f32::INFINITY, -0.0, f32::MAX, -1e-30].iter().enumerate()
            {
                bits[at * 7] = special.to_bits();
            }
            round_trip(format, &bits);
        }
        round_trip(format, &[0; 8 * LANES]);
        round_trip(format, &[f32::NAN.to_bits(); 8 * LANES]);
    }
}

#[test]
fn weights_become_a_quarter_smaller() {
    let mut rng = ChaCha8Rng::seed_from_u64(2);
    let bits: Vec<u32> = (0..2048 * LANES).map(|_| weight(&mut rng).to_bits()).collect();
    let upper: Vec<u32> = bits.iter().map(|bits| bits & 0xffff_0000).collect();
    for (format, bits, size) in [
        (Format::Bf16, &bits, 12.0 / 16.0),
        (Format::F32, &bits, 28.0 / 32.0),
        (Format::F32, &upper, 12.0 / 32.0),
    ] {
        let stored = round_trip(format, bits);
        assert!((size..size + 0.01).contains(&stored), "{format:?}: {stored}");
    }
}

/// What the weights of a block are like.
#[derive(Clone, Copy, Debug)]
enum Like {
    Weights,
    /// Some upper bytes have no code.
    Escaped,
    NoLows,
    /// Stored plain.
    Random,
}

/// Blocks of compressed weights and what they stand for.
struct Compressed {
    format: Format,
    columns: usize,
    stored: Vec<u8>,
    index: Vec<u64>,
    /// `[blocks * 16, columns]`
    rows: Vec<Vec<f32>>,
}

impl Compressed {
    fn new(format: Format, columns: usize, like: &[Like], rng: &mut ChaCha8Rng) -> Self {
        let mut all =
            Self { format, columns, stored: vec![1; 64], index: Vec::new(), rows: Vec::new() };
        for like in like {
            let bits: Vec<u32> = (0..columns * LANES)
                .map(|_| {
                    let weight = weight(rng);
                    let weight = match like {
                        Like::Weights => weight.to_bits(),
                        Like::Escaped if rng.next_u32().is_multiple_of(300) => {
                            (weight * 2f32.powi(rng.next_u32() as i32 % 40)).to_bits()
                        }
                        Like::Escaped => weight.to_bits(),
                        Like::NoLows => weight.to_bits() & 0xffff_0000,
                        Like::Random => (weight * 2f32.powi(rng.next_u32() as i32 % 40)).to_bits(),
                    };
                    if format == Format::F32 { weight } else { weight & 0xffff_0000 }
                })
                .collect();
            all.index.push(all.stored.len() as u64);
            compress(format, &packed(format, &bits), columns, &mut all.stored);
            all.rows.extend((0..LANES).map(|lane| {
                (0..columns).map(|column| f32::from_bits(bits[column * LANES + lane])).collect()
            }));
        }
        all
    }

    /// On every instruction set, against f64.
    fn check(&self, rows: usize, used: usize, gap: usize, rng: &mut ChaCha8Rng) {
        const GUARD: f32 = 1234.5;
        let rounded = self.format == Format::Bf16Rounded;
        let x: Vec<f32> = (0..rows * self.columns)
            .map(|_| weight(rng))
            .map(|x| if rounded { half::bf16::from_f32(x).to_f32() } else { x })
            .collect();
        let bytes = packed(self.format_of_x(), &x.iter().map(|x| x.to_bits()).collect::<Vec<_>>());
        let outputs = self.rows.len();
        let stride = outputs + gap;
        for isa in Isa::all_here() {
            let what = format!(
                "{isa:?} {:?} columns {} outputs {outputs} rows {used}/{rows} gap {gap}",
                self.format, self.columns,
            );
            let mut y = vec![GUARD; rows * stride];
            let product = Product {
                weights: self.stored.as_ptr(),
                index: self.index.as_ptr(),
                x: bytes.as_ptr(),
                y: y.as_mut_ptr(),
                rows,
                used,
                columns: self.columns,
                blocks: self.index.len(),
                stride,
            };
            // SAFETY: this CPU has the instructions, and the buffers have the shapes stated.
            unsafe { compressed_product_for(self.format, isa)(&product) };
            for row in 0..rows {
                let (computed, guard) = y[row * stride..][..stride].split_at(outputs);
                assert!(guard.iter().all(|&value| value == GUARD), "{what}: wrote into the gap");
                if row >= used {
                    assert!(computed.iter().all(|&y| y == 0.0), "{what}: padding row {row}");
                    continue;
                }
                let x = &x[row * self.columns..][..self.columns];
                for (output, (&computed, weights)) in computed.iter().zip(&self.rows).enumerate() {
                    let terms = x.iter().zip(weights).map(|(&x, &w)| f64::from(x) * f64::from(w));
                    let (sum, size) =
                        terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()));
                    let error = (f64::from(computed) - sum).abs();
                    // One large weight makes every later sum as coarse as it is.
                    assert!(
                        error <= 4e-6 * size,
                        "{what}: y[{row}, {output}] = {computed}, not {sum}"
                    );
                }
            }
        }
    }

    fn format_of_x(&self) -> Format {
        match self.format {
            Format::Bf16Rounded => Format::Bf16,
            _ => Format::F32,
        }
    }
}

#[test]
fn products_match_f64() {
    use Like::*;
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    for format in FORMATS {
        for like in [[Weights; 9], [Escaped; 9], [NoLows; 9], [Random; 9]] {
            let weights = Compressed::new(format, 264, &like, &mut rng);
            for rows in 1..=20 {
                weights.check(rows, rows, 0, &mut rng);
            }
        }
        let mixed = [Weights, Weights, Random, Escaped, NoLows, NoLows, Weights, Random, Escaped];
        for blocks in 1..=mixed.len() {
            for columns in [8, 2048] {
                let weights = Compressed::new(format, columns, &mixed[..blocks], &mut rng);
                for (rows, used) in [(1, 1), (4, 3), (8, 5), (9, 8), (40, 33)] {
                    weights.check(rows, used, 5, &mut rng);
                }
            }
        }
        Compressed::new(format, 64, &mixed, &mut rng).check(300, 290, 16, &mut rng);
    }
}

/// Of whole pieces and of parts, whatever a piece is, of more rows than are widened at once.
#[test]
fn products_in_pieces_match_f64() {
    use Like::*;
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    for format in FORMATS {
        for columns in [520, 1032] {
            let like = [Weights, Escaped, Random, NoLows, Weights];
            let weights = Compressed::new(format, columns, &like, &mut rng);
            weights.check(40, 33, 5, &mut rng);
            weights.check(300, 290, 16, &mut rng);
        }
    }
}

#[test]
fn activations_that_are_not_finite_are_not_hidden() {
    let mut rng = ChaCha8Rng::seed_from_u64(4);
    for format in FORMATS {
        let weights = Compressed::new(format, 96, &[Like::Escaped], &mut rng);
        for isa in Isa::all_here() {
            for rows in [1, 17] {
                for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    let mut x = vec![1f32.to_bits(); 96 * rows];
                    x[70] = value.to_bits();
                    let x = packed(weights.format_of_x(), &x);
                    let mut y = vec![0f32; rows * LANES];
                    let product = Product {
                        weights: weights.stored.as_ptr(),
                        index: weights.index.as_ptr(),
                        x: x.as_ptr(),
                        y: y.as_mut_ptr(),
                        rows,
                        used: rows,
                        columns: 96,
                        blocks: 1,
                        stride: LANES,
                    };
                    // SAFETY: this CPU has the instructions, and the buffers the shapes stated.
                    unsafe { compressed_product_for(format, isa)(&product) };
                    let finite = y.iter().filter(|y| y.is_finite()).count();
                    assert_eq!(finite, (rows - 1) * LANES, "{isa:?} {format:?}: {value}");
                }
            }
        }
    }
}

/// Blocks of every kind, with escapes, and rows of each.
#[test]
fn a_row_is_the_row() {
    const COLUMNS: usize = 24;
    for format in [Format::F32, Format::Bf16] {
        let weight = |block: usize, i: usize| -> u32 {
            let bits = (i as u32).wrapping_mul(0x9e37_79b9).rotate_left(7);
            let exponent = match block {
                // Everywhere, so that this block is stored plain.
                0 => bits >> 8 & 0xff,
                // Of fifteen upper bytes that have codes, these are the last: one has none.
                _ if i == 100 => 3,
                _ if i == 200 => 33,
                _ => 114 + bits % 14,
            };
            let low = if block == 1 || format != Format::F32 { 0 } else { bits & 0xffff };
            bits & 0x807f_0000 | exponent << 23 | low
        };
        let (mut weights, mut index) = (Vec::new(), Vec::new());
        for block in 0..3 {
            let words = (0..COLUMNS * LANES).map(|i| weight(block, i));
            let packed: Vec<u8> = match format {
                Format::F32 => words.flat_map(u32::to_le_bytes).collect(),
                _ => words.flat_map(|word| ((word >> 16) as u16).to_le_bytes()).collect(),
            };
            index.push(weights.len() as u64);
            let at = weights.len();
            compress(format, &packed, COLUMNS, &mut weights);
            let escapes = u32::from_le_bytes(weights[at + 16..at + 20].try_into().unwrap());
            assert_eq!(escapes, u32::from(block > 0));
        }
        let matrix = Rows { weights: weights.as_ptr(), index: index.as_ptr(), columns: COLUMNS };
        for row in 0..3 * LANES {
            let mut y = [0.0; COLUMNS];
            // SAFETY: the matrix was made above.
            unsafe { compressed_row(format, &matrix, row, y.as_mut_ptr()) };
            for (column, y) in y.iter().enumerate() {
                let bits = weight(row / LANES, column * LANES + row % LANES);
                assert_eq!(y.to_bits(), bits, "{format:?} row {row} column {column}");
            }
        }
    }
}

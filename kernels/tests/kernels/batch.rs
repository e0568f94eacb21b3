//! Batch invariance: a row has the same bits whatever other rows are multiplied with it.

use kernels::{Format, Isa, LANES, Product, compressed_product_for, product_for};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::ggml::is_only_ggmls;
use crate::weights::{Weights, random};

/// Columns that fill groups, or do not, of which pairs are an odd number, and of compressed blocks more than
/// one piece; blocks that no tile divides.
const SHAPES: [(usize, usize); 8] =
    [(1, 1), (33, 3), (74, 5), (72, 9), (577, 2), (584, 5), (608, 5), (32, 35)];

/// A matrix as kernels take it.
struct Stored {
    weights: Weights,
    /// Compressed blocks, and where each begins.
    compressed: Option<(Vec<u8>, Vec<u64>)>,
}

impl Stored {
    /// The bits of rows `x`, each alone: `[rows, blocks * 16]`. Blocks are alone too.
    fn alone(&self, isa: Isa, x: &[u8], rows: usize) -> Vec<u32> {
        let outputs = self.weights.blocks * LANES;
        let row_bytes = x.len() / rows;
        let mut all = Vec::new();
        for x in x.chunks(row_bytes) {
            let mut y = vec![f32::NAN; outputs];
            for block in 0..self.weights.blocks {
                let y = &mut y[block * LANES..][..LANES];
                self.multiply(isa, block..block + 1, x, y, 1);
            }
            all.extend(y.into_iter().map(f32::to_bits));
        }
        all
    }

    fn multiply(
        &self,
        isa: Isa,
        blocks: std::ops::Range<usize>,
        x: &[u8],
        y: &mut [f32],
        rows: usize,
    ) {
        let Weights { format, columns, ref bytes, .. } = self.weights;
        let (kernel, weights, index) = match &self.compressed {
            Some((bytes, index)) => {
                let index = index[blocks.start..].as_ptr();
                (compressed_product_for(format, isa), bytes.as_ptr(), index)
            }
            None => {
                let at = &bytes[blocks.start * format.block_bytes(columns)..];
                (product_for(format, isa), at.as_ptr(), std::ptr::null())
            }
        };
        let product = Product {
            weights,
            index,
            x: x.as_ptr(),
            y: y.as_mut_ptr(),
            rows,
            used: rows,
            columns,
            blocks: blocks.len(),
            stride: y.len() / rows,
        };
        // SAFETY: this CPU has the instructions, and the buffers have the shapes stated.
        unsafe { kernel(&product) };
    }

    /// Some of `most` rows together, from one and from another on: every bit is that of the row alone.
    fn check(&self, most: usize, counts: &[usize], rng: &mut ChaCha8Rng) {
        self.check_scaled(most, counts, |_| 1.0, rng);
    }

    /// As [`check`](Self::check), with activations that are so many times those there, by their row.
    fn check_scaled(
        &self,
        most: usize,
        counts: &[usize],
        scale: impl Fn(usize) -> f32,
        rng: &mut ChaCha8Rng,
    ) {
        let Weights { format, columns, blocks, .. } = self.weights;
        let x = (0..most * columns).map(|i| random(rng) * scale(i / columns));
        let mut x: Vec<f32> = x.collect();
        // One row is not finite.
        x[(most - 1) * columns] = f32::INFINITY;
        let outputs = blocks * LANES;
        for isa in Isa::all_here() {
            let alone = self.alone(isa, &self.weights.bytes_of(&x, isa, 1), most);
            for &rows in counts {
                let bytes = self.weights.bytes_of(&x, isa, rows);
                let row_bytes = bytes.len() / most;
                let first = rng.next_u32() as usize % (most - rows + 1);
                let mut y = vec![f32::NAN; rows * outputs];
                let x = &bytes[first * row_bytes..][..rows * row_bytes];
                self.multiply(isa, 0..blocks, x, &mut y, rows);
                for (i, y) in y.iter().enumerate() {
                    let expected = alone[first * outputs + i];
                    assert!(
                        y.to_bits() == expected || y.is_nan() && f32::from_bits(expected).is_nan(),
                        "{isa:?} {format:?} [{outputs}, {columns}], compressed: {}: row {} of {rows}, \
                         output {}: {y}, alone {}",
                        self.compressed.is_some(),
                        i / outputs,
                        i % outputs,
                        f32::from_bits(expected),
                    );
                }
            }
        }
    }
}

/// Weights of which some have exponents of their own, and in every third block most: these are stored
/// plain where others are compressed.
fn weights(format: Format, columns: usize, blocks: usize, rng: &mut ChaCha8Rng) -> Weights {
    if is_only_ggmls(format) {
        return Weights::random(format, columns, blocks, rng);
    }
    let mut rows = Vec::new();
    for row in 0..blocks * LANES {
        let often = if row / LANES % 3 == 2 { 1 } else { 200 };
        let mut weight = || match rng.next_u32() % often {
            0 => random(rng) * 2f32.powi(rng.next_u32() as i32 % 30 - 25),
            _ => random(rng),
        };
        rows.push((0..columns).map(|_| weight()).collect());
    }
    Weights::new(format, columns, rows)
}

#[test]
fn a_row_has_its_bits_among_any_others() {
    let few: Vec<usize> = (1..=40).collect();
    let mut rng = ChaCha8Rng::seed_from_u64(17);
    for format in Format::ALL {
        for (columns, blocks) in SHAPES {
            let weights = weights(format, columns, blocks, &mut rng);
            let compressed = weights.compressed();
            let mut stored = Stored { weights, compressed };
            loop {
                stored.check(40, &few, &mut rng);
                stored.check(260, &[64, 72, 256, 260], &mut rng);
                if stored.compressed.take().is_none() {
                    break;
                }
            }
        }
    }
}

/// Products and sums around the smallest normal number, as there are instructions that take subnormal ones for
/// zero and others that do not; weights and activations that are subnormal themselves, and large ones beside.
#[test]
fn a_row_of_tiny_numbers_has_its_bits_among_any_others() {
    let mut rng = ChaCha8Rng::seed_from_u64(18);
    for format in [Format::F32, Format::F16, Format::Bf16, Format::Bf16Rounded] {
        let (columns, blocks) = (96, 5);
        let mut tiny = |row: usize| {
            // Not at once: 2^-130 would be one divided by what is infinite.
            let (one, other) = [(0, -60), (-65, -65), (0, 60)][row / LANES % 3];
            let mut weight = || random(&mut rng) * 2f32.powi(one) * 2f32.powi(other);
            (0..columns).map(|_| weight()).collect()
        };
        let weights = Weights::new(format, columns, (0..blocks * LANES).map(&mut tiny).collect());
        let compressed = weights.compressed();
        let mut stored = Stored { weights, compressed };
        let scale = |row: usize| 2f32.powi(60 - 10 * (row as i32 % 18));
        loop {
            stored.check_scaled(33, &[1, 2, 17, 33], scale, &mut rng);
            if stored.compressed.take().is_none() {
                break;
            }
        }
    }
}

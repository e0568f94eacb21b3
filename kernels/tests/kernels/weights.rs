//! Random numbers, and weights of them.

use half::{bf16, f16};
use kernels::{
    Format, GROUP, Isa, LANES, Product, compress, product_for, quantise, round_row, rounded_bytes,
};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::Rng;

use crate::ggml;

/// Uniform in -1.0..1.0.
pub fn random(rng: &mut ChaCha8Rng) -> f32 {
    rng.next_u32() as f32 / (1_u64 << 31) as f32 - 1.0
}

/// The sum of twelve uniform numbers is nearly normal.
pub fn normal(rng: &mut ChaCha8Rng) -> f32 {
    (0..12).map(|_| random(rng)).sum()
}

/// Rows of `columns` activations as integers of `format` take them where `used` meet them together.
pub fn rounded(format: Format, isa: Isa, used: usize, x: &[f32], columns: usize) -> Vec<u8> {
    let mut rows = Vec::new();
    for x in x.chunks(columns) {
        let mut row = vec![0u32; rounded_bytes(columns) / size_of::<u32>()];
        // SAFETY: this CPU has the instructions, and the row is as long as it has to be.
        unsafe { round_row(isa, format, used, x.as_ptr(), columns, row.as_mut_ptr().cast()) };
        rows.extend(row.into_iter().flat_map(u32::to_ne_bytes));
    }
    rows
}

/// Packed weights and what they stand for.
pub struct Weights {
    pub format: Format,
    pub columns: usize,
    pub blocks: usize,
    pub bytes: Vec<u8>,
    /// `[blocks * 16, columns]`
    pub rows: Vec<Vec<f32>>,
}

impl Weights {
    /// Of so many columns, or a few more where they have to fill blocks.
    pub fn random(format: Format, columns: usize, blocks: usize, rng: &mut ChaCha8Rng) -> Self {
        if ggml::is_only_ggmls(format) {
            return ggml::random(format, columns, blocks, rng);
        }
        let rows = (0..blocks * LANES)
            .map(|_| {
                let size = 0.01 + random(rng).abs();
                (0..columns).map(|_| size * random(rng)).collect()
            })
            .collect();
        Self::new(format, columns, rows)
    }

    /// Of `rows` as they come nearest to it.
    pub fn new(format: Format, columns: usize, mut rows: Vec<Vec<f32>>) -> Self {
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
                _ => {
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

    /// Compressed blocks, and where each begins, where the format has them.
    pub fn compressed(&self) -> Option<(Vec<u8>, Vec<u64>)> {
        let Self { format, columns, ref bytes, .. } = *self;
        format.is_compressible(columns).then(|| {
            let (mut compressed, mut index) = (Vec::new(), Vec::new());
            for block in bytes.chunks(format.block_bytes(columns)) {
                index.push(compressed.len() as u64);
                compress(format, block, columns, &mut compressed);
            }
            (compressed, index)
        })
    }

    /// Rows of activations in the bytes that the format takes, of which `used` meet it.
    pub fn bytes_of(&self, x: &[f32], isa: Isa, used: usize) -> Vec<u8> {
        match self.format {
            Format::Bf16Rounded => {
                x.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect()
            }
            format if format.is_quantised() => rounded(format, isa, used, x, self.columns),
            _ => x.iter().flat_map(|x| x.to_le_bytes()).collect(),
        }
    }

    /// Activations as the format takes them: integers want 8, 15 or 16 bits of them.
    pub fn rounded(&self, x: &[f32]) -> Vec<f64> {
        let most = match self.format {
            // Scales that are integers are multiplied with weights.
            Format::Q6K => 16383.0,
            Format::Nested4 | Format::Int8Rounded => 127.0,
            _ => 127.0 * 257.0,
        };
        let groups = x.chunks(if self.format.is_quantised() { GROUP } else { usize::MAX });
        let round = |group: &[f32]| -> Vec<f64> {
            let largest = group.iter().fold(0f32, |largest, x| largest.max(x.abs()));
            let scale = f64::from(largest / most);
            let round = |x: &f32| f64::from((x * (most / largest)).round_ties_even()) * scale;
            let exact = |x: &f32| f64::from(*x);
            match self.format {
                format if format.is_quantised() => group.iter().map(round).collect(),
                Format::Bf16Rounded => group.iter().map(|&x| bf16::from_f32(x).into()).collect(),
                _ => group.iter().map(exact).collect(),
            }
        };
        groups.flat_map(round).collect()
    }

    /// Multiplies random activations on every instruction set and compares with f64.
    pub fn check(&self, rows: usize, used: usize, gap: usize, rng: &mut ChaCha8Rng) {
        let x: Vec<f32> = (0..rows * self.columns).map(|_| random(rng)).collect();
        self.check_with(&x, rows, used, gap);
    }

    pub fn check_with(&self, x: &[f32], rows: usize, used: usize, gap: usize) {
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

//! Rotary frequencies and their tables, in the float32 steps of Hugging Face transformers.

use std::ops::Range;

use super::{ModelConfig, RopeScaling};

/// Cosines and sines of the rotary angles of consecutive positions.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeTables {
    /// `[positions, head_dim / 2]`, row-major.
    pub cos: Vec<f32>,
    /// `[positions, head_dim / 2]`, row-major.
    pub sin: Vec<f32>,
}

impl ModelConfig {
    /// The angle, in radians, that each pair of a head's dimensions turns by from one position to
    /// the next: `[head_dim / 2]`.
    ///
    /// Every operation rounds to float32, in the order of `modeling_rope_utils.py`, except that
    /// the power is correctly rounded where PyTorch's may be off by one unit in the last place.
    pub fn inv_freq(&self) -> Vec<f32> {
        let dim = self.head_dim as f32;
        let base = f64::from(self.rope_theta as f32);
        let plain = (0..self.head_dim).step_by(2).map(|i| {
            let exponent = i as f32 / dim;
            1.0 / (base.powf(f64::from(exponent)) as f32)
        });
        match &self.rope_scaling {
            RopeScaling::None => plain.collect(),
            RopeScaling::Linear { factor } => plain.map(|f| f / *factor as f32).collect(),
            RopeScaling::Divided(by) => plain.zip(by).map(|(f, by)| f / by).collect(),
            &RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position_embeddings,
            } => {
                let factor = factor as f32;
                // Python's own numbers are float64 until they meet a tensor.
                let context = original_max_position_embeddings as f64;
                let longest = (context / low_freq_factor) as f32;
                let shortest = (context / high_freq_factor) as f32;
                let low = low_freq_factor as f32;
                let width = (high_freq_factor - low_freq_factor) as f32;
                // PyTorch divides a number by a tensor as reciprocal times number.
                let over = |number: f32, tensor: f32| (1.0 / tensor) * number;
                plain
                    .map(|f| {
                        let wavelength = over(2.0 * std::f32::consts::PI, f);
                        if wavelength > longest {
                            f / factor
                        } else if wavelength < shortest {
                            f
                        } else {
                            let smooth = (over(context as f32, wavelength) - low) / width;
                            (1.0 - smooth) * f / factor + smooth * f
                        }
                    })
                    .collect()
            }
        }
    }

    /// Cosines and sines for `positions`; the attention scaling is 1 for every supported rope
    /// type.
    ///
    /// The angle is rounded to float32, as transformers does; its cosine and sine are correctly
    /// rounded.
    pub fn rope_tables(&self, positions: Range<usize>) -> RopeTables {
        let inv_freq = self.inv_freq();
        let n = positions.len() * inv_freq.len();
        let mut tables = RopeTables { cos: Vec::with_capacity(n), sin: Vec::with_capacity(n) };
        for position in positions {
            for f in &inv_freq {
                let (sin, cos) = f64::from(position as f32 * f).sin_cos();
                tables.cos.push(cos as f32);
                tables.sin.push(sin as f32);
            }
        }
        tables
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(head_dim: usize, rope_theta: f64, rope_scaling: RopeScaling) -> ModelConfig {
        let folder = tempfile::tempdir().unwrap();
        let text = format!(r#"{{"model_type": "llama", "head_dim": {head_dim}}}"#);
        std::fs::write(folder.path().join("config.json"), text).unwrap();
        let config = ModelConfig::from_dir(folder.path()).unwrap();
        ModelConfig { rope_theta, rope_scaling, ..config }
    }

    fn bits(config: &ModelConfig) -> Vec<u32> {
        config.inv_freq().into_iter().map(f32::to_bits).collect()
    }

    // The numbers in these tests are `LlamaRotaryEmbedding(config).inv_freq` and its `forward` in
    // transformers 5.23 on PyTorch 2.15, as bits.

    #[test]
    fn plain_frequencies_equal_transformers() {
        assert_eq!(
            bits(&config(18, 10_000.0, RopeScaling::None)),
            [
                0x3f800000, 0x3eb800d6, 0x3e044133, 0x3d3e1e95, 0x3c88a69b, 0x3bc47060, 0x3b0d3169,
                0x3a4af7f3, 0x3991e2e1
            ]
        );
        assert_eq!(
            bits(&config(32, 500_000.0, RopeScaling::None)),
            [
                0x3f800000, 0x3ee177bc, 0x3e4693b0, 0x3daee4ad, 0x3d1a08c8, 0x3c87a9c3, 0x3beef74f,
                0x3b527720, 0x3ab95d21, 0x3a23418d, 0x398fc8f8, 0x38fd45c3, 0x385f10c4, 0x37c47610,
                0x372d07a7, 0x369864a7
            ]
        );
    }

    #[test]
    fn linear_frequencies_equal_transformers() {
        assert_eq!(
            bits(&config(18, 5000.0, RopeScaling::Linear { factor: 2.5 })),
            [
                0x3ecccccd, 0x3e1efcd4, 0x3d76d8a6, 0x3cbfa0e0, 0x3c14c32e, 0x3b66f872, 0x3ab34dcf,
                0x3a0b31e2, 0x39581da6
            ]
        );
    }

    #[test]
    fn llama3_frequencies_equal_transformers() {
        let llama_3_2_1b = RopeScaling::Llama3 {
            factor: 32.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 8192,
        };
        assert_eq!(
            bits(&config(64, 500_000.0, llama_3_2_1b)),
            [
                0x3f800000, 0x3f29e1c6, 0x3ee177bc, 0x3e959ee3, 0x3e4693b0, 0x3e03c6a0, 0x3daee4ad,
                0x3d681e67, 0x3d1a08c8, 0x3ccc6f49, 0x3c87a9c3, 0x3c340d6d, 0x3beef74f, 0x3b9e9402,
                0x3b527720, 0x3aa9279b, 0x39e13620, 0x38cb98f7, 0x37a3418d, 0x3758ac81, 0x370fc8f8,
                0x36bed4f4, 0x367d45c3, 0x3628126b, 0x35df10c4, 0x359406cb, 0x35447610, 0x35025f34,
                0x34ad07a7, 0x3465a54d, 0x341864a7, 0x33ca41b0
            ]
        );
        let tiny = RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 64,
        };
        assert_eq!(
            bits(&config(16, 10_000.0, tiny)),
            [
                0x3f800000, 0x3e7a3ff4, 0x3c55af30, 0x3b8186e3, 0x3aa3d70a, 0x39cf3e38, 0x3903126f,
                0x3825cb60
            ]
        );
    }

    #[test]
    fn tables_equal_transformers_to_the_last_place() {
        let config = config(16, 10_000.0, RopeScaling::None);
        let cos_at = |position: usize| config.rope_tables(position..position + 1).cos;
        let cases: [(usize, [u32; 8]); 3] = [
            (0, [0x3f800000; 8]),
            (
                17,
                [
                    0xbe8ce236, 0x3f1da951, 0xbe03efd3, 0x3f5be3ee, 0x3f7c4f49, 0x3f7fa153,
                    0x3f7ff688, 0x3f7fff0e,
                ],
            ),
            (
                4095,
                [
                    0xbd871e6c, 0x3f50e0ac, 0x3eeb7335, 0xbf4570f4, 0xbf7e78f4, 0x3f6d6feb,
                    0xbf14334f, 0x3e8b729a,
                ],
            ),
        ];
        for (position, expected) in cases {
            for (ours, theirs) in cos_at(position).iter().zip(expected) {
                let theirs = f32::from_bits(theirs);
                assert!((ours - theirs).abs() <= theirs.abs() * f32::EPSILON, "{ours} {theirs}");
            }
        }
        let tables = config.rope_tables(3..6);
        assert_eq!(tables.cos.len(), 3 * 8);
        assert_eq!(tables.sin[8..16], config.rope_tables(4..5).sin);
        assert_eq!(tables.sin[8], (4f64).sin() as f32);
    }
}

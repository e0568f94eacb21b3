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
        match self.rope_scaling {
            RopeScaling::None => plain.collect(),
            RopeScaling::Linear { factor } => plain.map(|f| f / factor as f32).collect(),
            RopeScaling::Llama3 {
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

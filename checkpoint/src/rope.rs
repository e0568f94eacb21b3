//! Rotary position embeddings (Su et al., RoFormer): frequencies and their tables, in the float32 steps of
//! Hugging Face transformers.

use std::f64::consts::PI;
use std::ops::Range;

/// How queries and keys are rotated by their position.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// Base of the frequencies.
    pub theta: f64,
    /// Their scaling.
    pub scaling: RopeScaling,
    /// How many dimensions of a head are rotated, its first ones; even.
    pub width: usize,
    /// Which dimensions are a pair: neighbours, or one of the first half of these and one of the second.
    pub interleaved: bool,
    /// Most positions that there will be.
    pub positions: usize,
    /// What cosines and sines are multiplied with beside that, where scores are to grow with the position of
    /// their query; for queries alone.
    pub temperature: Option<Temperature>,
}

/// How scores grow with the position of their query (Llama 4): times `1 + beta * ln(1 + floor(position /
/// original_max_position_embeddings))`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Temperature {
    /// `llama_4_scaling_beta`.
    pub beta: f64,
    /// `original_max_position_embeddings`, in tokens; below that nothing grows.
    pub original_max_position_embeddings: usize,
}

impl Temperature {
    fn of(self, position: usize) -> f32 {
        let steps = position / self.original_max_position_embeddings;
        1.0 + self.beta as f32 * (1.0 + steps as f32).ln()
    }
}

/// How rotary frequencies are stretched beyond the trained context; exhaustive, so that an engine answers
/// for each.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// Not at all (`rope_type` "default").
    None,
    /// Every frequency divided by `factor` (`rope_type` "linear").
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Llama 3.1's: long wavelengths divided, short ones kept, a ramp between.
    Llama3 {
        /// The divisor of long wavelengths.
        factor: f64,
        /// `low_freq_factor`.
        low_freq_factor: f64,
        /// `high_freq_factor`.
        high_freq_factor: f64,
        /// `original_max_position_embeddings`, in tokens.
        original_max_position_embeddings: usize,
    },
    /// YaRN (Peng et al.): slow frequencies divided, fast ones kept, a ramp between.
    Yarn {
        /// The divisor of slow frequencies.
        factor: f64,
        /// Turns within the original context from which on a frequency is kept.
        beta_fast: f64,
        /// Turns up to which it is divided.
        beta_slow: f64,
        /// Whether the ends of the ramp are whole dimensions.
        truncate: bool,
        /// What cosines and sines are multiplied with.
        attention_factor: f64,
        /// `original_max_position_embeddings`, in tokens.
        original_max_position_embeddings: usize,
    },
    /// LongRoPE (Ding et al.): each frequency divided by a number of its own, `[width / 2]`, by others
    /// where more positions than the original ones are wanted.
    LongRope {
        /// The divisors up to the original context.
        short_factor: Vec<f32>,
        /// The divisors beyond it.
        long_factor: Vec<f32>,
        /// What cosines and sines are multiplied with.
        attention_factor: f64,
        /// `original_max_position_embeddings`, in tokens.
        original_max_position_embeddings: usize,
    },
    /// Each frequency divided by a number of its own, `[width / 2]`: how GGUF files have Llama 3.1's. What is
    /// divided by infinity does not turn.
    Divided(Vec<f32>),
}

impl RopeScaling {
    /// The frequencies of whole heads of `width`, of which that part turns, divided by `factor` (`rope_type`
    /// "proportional").
    pub(crate) fn proportional(part: f64, width: usize, factor: f64) -> Self {
        let turning = (part * width as f64 / 2.0) as usize;
        let by = |at: usize| if at < turning { factor as f32 } else { f32::INFINITY };
        Self::Divided((0..width / 2).map(by).collect())
    }
}

/// Cosines and sines of the rotary angles of consecutive positions.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeTables {
    /// `[positions, width / 2]`, row-major.
    pub cos: Vec<f32>,
    /// `[positions, width / 2]`, row-major.
    pub sin: Vec<f32>,
}

impl Rope {
    /// The angle, in radians, that each pair of a head's dimensions turns by from one position to
    /// the next: `[width / 2]`.
    ///
    /// Every operation rounds to float32, in the order of `modeling_rope_utils.py`, except that
    /// the power is correctly rounded where PyTorch's may be off by one unit in the last place.
    pub fn inv_freq(&self) -> Vec<f32> {
        let dim = self.width as f32;
        let base = f64::from(self.theta as f32);
        let powers = (0..self.width).step_by(2).map(|i| {
            let exponent = i as f32 / dim;
            base.powf(f64::from(exponent)) as f32
        });
        let plain = powers.clone().map(|power| 1.0 / power);
        match &self.scaling {
            RopeScaling::None => plain.collect(),
            RopeScaling::Linear { factor } => plain.map(|f| f / *factor as f32).collect(),
            RopeScaling::Divided(by) => plain.zip(by).map(|(f, by)| f / by).collect(),
            RopeScaling::LongRope {
                short_factor,
                long_factor,
                original_max_position_embeddings: original,
                ..
            } => {
                let by = if self.positions > *original { long_factor } else { short_factor };
                powers.zip(by).map(|(power, by)| 1.0 / (by * power)).collect()
            }
            &RopeScaling::Yarn {
                factor,
                beta_fast,
                beta_slow,
                truncate,
                original_max_position_embeddings: original,
                ..
            } => {
                // The dimension of which a wave turns so often within the original context.
                let dimension = |turns: f64| {
                    let (dim, context) = (self.width as f64, original as f64);
                    (dim * (context / (turns * 2.0 * PI)).ln()) / (2.0 * self.theta.ln())
                };
                let (mut low, mut high) = (dimension(beta_fast), dimension(beta_slow));
                if truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                let (low, mut high) = (low.max(0.0), high.min(self.width as f64 - 1.0));
                if low == high {
                    high += 0.001;
                }
                let kept = |i: usize| {
                    let ramp = (i as f32 - low as f32) / (high - low) as f32;
                    1.0 - ramp.clamp(0.0, 1.0)
                };
                let blend = |(i, power): (usize, f32)| {
                    let (extrapolated, interpolated) = (1.0 / power, 1.0 / (factor as f32 * power));
                    interpolated * (1.0 - kept(i)) + extrapolated * kept(i)
                };
                powers.enumerate().map(blend).collect()
            }
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

    /// Cosines and sines for `positions`.
    ///
    /// The angle is rounded to float32, as transformers does; its cosine and sine are correctly
    /// rounded.
    pub fn tables(&self, positions: Range<usize>) -> RopeTables {
        let inv_freq = self.inv_freq();
        let factor = self.attention_factor() as f32;
        let n = positions.len() * inv_freq.len();
        let mut tables = RopeTables { cos: Vec::with_capacity(n), sin: Vec::with_capacity(n) };
        for position in positions {
            let factor = self.temperature.map_or(factor, |it| factor * it.of(position));
            for f in &inv_freq {
                let (sin, cos) = f64::from(position as f32 * f).sin_cos();
                tables.cos.push(cos as f32 * factor);
                tables.sin.push(sin as f32 * factor);
            }
        }
        tables
    }

    /// What cosines and sines are multiplied with.
    fn attention_factor(&self) -> f64 {
        match self.scaling {
            RopeScaling::Yarn { attention_factor, .. }
            | RopeScaling::LongRope { attention_factor, .. } => attention_factor,
            RopeScaling::None
            | RopeScaling::Linear { .. }
            | RopeScaling::Llama3 { .. }
            | RopeScaling::Divided(_) => 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rope(width: usize, theta: f64, scaling: RopeScaling) -> Rope {
        Rope { theta, scaling, width, interleaved: false, positions: 4096, temperature: None }
    }

    fn bits(rope: &Rope) -> Vec<u32> {
        rope.inv_freq().into_iter().map(f32::to_bits).collect()
    }

    // The numbers in these tests are `LlamaRotaryEmbedding(config).inv_freq` and its `forward` in
    // transformers 5.23 on PyTorch 2.15, as bits.

    #[test]
    fn plain_frequencies_equal_transformers() {
        assert_eq!(
            bits(&rope(18, 10_000.0, RopeScaling::None)),
            [
                0x3f800000, 0x3eb800d6, 0x3e044133, 0x3d3e1e95, 0x3c88a69b, 0x3bc47060, 0x3b0d3169,
                0x3a4af7f3, 0x3991e2e1
            ]
        );
        assert_eq!(
            bits(&rope(32, 500_000.0, RopeScaling::None)),
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
            bits(&rope(18, 5000.0, RopeScaling::Linear { factor: 2.5 })),
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
            bits(&rope(64, 500_000.0, llama_3_2_1b)),
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
            bits(&rope(16, 10_000.0, tiny)),
            [
                0x3f800000, 0x3e7a3ff4, 0x3c55af30, 0x3b8186e3, 0x3aa3d70a, 0x39cf3e38, 0x3903126f,
                0x3825cb60
            ]
        );
    }

    #[test]
    fn yarn_frequencies_equal_transformers() {
        let yarn = |factor, original_max_position_embeddings, truncate, attention_factor| {
            let (beta_fast, beta_slow) = (32.0, 1.0);
            RopeScaling::Yarn {
                factor,
                beta_fast,
                beta_slow,
                truncate,
                attention_factor,
                original_max_position_embeddings,
            }
        };
        assert_eq!(
            bits(&rope(24, 10_000.0, yarn(4.0, 64, true, 1.138_629_4))),
            [
                0x3f800000, 0x3ec11711, 0x3e09e241, 0x3d333334, 0x3c3e1e95, 0x3bb07dc6, 0x3b23d70a,
                0x3a98187a, 0x3a0d3169, 0x3983126f, 0x38f35a5c, 0x3861e8a7
            ]
        );
        let ramp = rope(24, 150_000.0, yarn(32.0, 4096, false, 1.346_573_6));
        assert_eq!(
            bits(&ramp),
            [
                0x3f800000, 0x3ebda3bc, 0x3e0c7b2d, 0x3d502194, 0x3c61baef, 0x3b4f99dd, 0x39ef543c,
                0x37fab312, 0x3739b688, 0x3689928c, 0x35cbd262, 0x3516fcaa
            ]
        );
        // Of the first position: nothing turned, everything stretched.
        assert_eq!(ramp.tables(0..1).cos, [1.346_573_6; 12]);
        assert_eq!(ramp.tables(0..1).sin, [0.0; 12]);
    }

    #[test]
    fn long_rope_frequencies_equal_transformers() {
        let long_rope = RopeScaling::LongRope {
            short_factor: vec![1.0, 1.1, 1.25, 1.5, 2.0, 3.0],
            long_factor: vec![1.0, 2.0, 3.0, 5.0, 8.0, 13.0],
            attention_factor: 1.105_541_6,
            original_max_position_embeddings: 512,
        };
        let rope = rope(12, 10_000.0, long_rope);
        assert_eq!(
            bits(&Rope { positions: 512, ..rope.clone() }),
            [0x3f800000, 0x3e488eeb, 0x3d181877, 0x3bda740e, 0x3a8d3169, 0x39223c3e]
        );
        assert_eq!(
            bits(&Rope { positions: 513, ..rope }),
            [0x3f800000, 0x3ddc9d35, 0x3c7d7e1b, 0x3b03126f, 0x398d3169, 0x3815c174]
        );
    }

    #[test]
    fn tables_equal_transformers_to_the_last_place() {
        let rope = rope(16, 10_000.0, RopeScaling::None);
        let cos_at = |position: usize| rope.tables(position..position + 1).cos;
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
        let temperature = Temperature { beta: 0.5, original_max_position_embeddings: 8 };
        let growing = Rope { temperature: Some(temperature), ..rope.clone() };
        assert_eq!(growing.tables(7..8), rope.tables(7..8));
        // `get_llama_4_attn_scale(24, 0.5, 8)`.
        let (grown, plain) = (growing.tables(24..25).cos, rope.tables(24..25).cos);
        assert!(grown.iter().zip(plain).all(|(grown, plain)| *grown == plain * 1.693_147_2));
        let tables = rope.tables(3..6);
        assert_eq!(tables.cos.len(), 3 * 8);
        assert_eq!(tables.sin[8..16], rope.tables(4..5).sin);
        assert_eq!(tables.sin[8], (4f64).sin() as f32);
    }
}

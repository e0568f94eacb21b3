//! What a model is: `config.json` and `generation_config.json` in Hugging Face layout, or the keys of a
//! GGUF file.

mod parse;
mod rope;

pub use rope::RopeTables;

use crate::architecture::{Architecture, Parameter, Role};
use crate::families::Family;

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
    /// Each frequency divided by a number of its own, `[head_dim / 2]`: how GGUF files have
    /// Llama 3.1's.
    Divided(Vec<f32>),
}

/// A causal language model's shape and options, under Hugging Face's names.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ModelConfig {
    /// Which family.
    pub family: &'static Family,
    /// Number of token ids.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the MLP.
    pub intermediate_size: usize,
    /// Number of layers.
    pub num_hidden_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key and value heads; divides `num_attention_heads`.
    pub num_key_value_heads: usize,
    /// Width of one head; even.
    pub head_dim: usize,
    /// Most tokens the model was made for.
    pub max_position_embeddings: usize,
    /// Epsilon of every RMS norm.
    pub rms_norm_eps: f64,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Their scaling.
    pub rope_scaling: RopeScaling,
    /// Whether the output projection is the embedding matrix.
    pub tie_word_embeddings: bool,
    /// What it computes, and with which parameters.
    pub architecture: Architecture,
    /// EOS ids: `generation_config.json`, else `config.json`, else the family's default; may be
    /// empty. Ids outside the vocabulary, which no step can return, are left out.
    pub eos_token_ids: Vec<u32>,
    /// BOS id, from the same places.
    pub bos_token_id: Option<u32>,
}

impl ModelConfig {
    /// The matrix that gives logits, `[vocab_size, hidden_size]`: the embedding where the two are
    /// tied.
    pub fn output(&self) -> &Parameter {
        let Architecture { embedding, output, .. } = &self.architecture;
        if self.tie_word_embeddings { embedding } else { output }
    }

    /// Every tensor that the model needs, each once, in the order in which a token meets them.
    pub fn tensors(&self) -> impl Iterator<Item = &Parameter> {
        let tied = self.tie_word_embeddings;
        self.architecture.parameters().filter(move |it| !(tied && it.role == Role::Output))
    }

    /// Number of parameters.
    pub fn parameter_count(&self) -> usize {
        self.tensors().map(Parameter::elements).sum()
    }
}

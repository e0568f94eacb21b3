//! What a model is: `config.json` and `generation_config.json` in Hugging Face layout.

mod keys;
mod parse;
mod rope;
mod tensors;

pub use rope::RopeTables;
pub use tensors::{LayerTensors, LinearSpec, TensorSpec};

/// The families whose graphs we emit; they differ in biases and norms only. An engine answers for
/// each, so that the list is exhaustive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    /// `LlamaForCausalLM`: Llama 2, 3, 3.x.
    Llama,
    /// `MistralForCausalLM`.
    Mistral,
    /// `Qwen2ForCausalLM`: Qwen2 and Qwen2.5.
    Qwen2,
    /// `Qwen3ForCausalLM`.
    Qwen3,
}

impl Family {
    /// Every family, by its Hugging Face `model_type`.
    pub const ALL: [(&'static str, Self); 4] = [
        ("llama", Self::Llama),
        ("mistral", Self::Mistral),
        ("qwen2", Self::Qwen2),
        ("qwen3", Self::Qwen3),
    ];

    /// The Hugging Face `model_type`: "llama".
    pub fn model_type(self) -> &'static str {
        Self::ALL.iter().find(|(_, family)| *family == self).map_or("", |(name, _)| name)
    }

    /// The Hugging Face class in `architectures`: "LlamaForCausalLM".
    pub fn architecture(self) -> &'static str {
        match self {
            Self::Llama => "LlamaForCausalLM",
            Self::Mistral => "MistralForCausalLM",
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Qwen3 => "Qwen3ForCausalLM",
        }
    }
}

/// How rotary frequencies are stretched beyond the trained context; exhaustive, as families are.
#[derive(Debug, Clone, Copy, PartialEq)]
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
}

/// A causal language model's shape and options, under Hugging Face's names.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ModelConfig {
    /// Which family.
    pub family: Family,
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
    /// Whether the q, k and v projections have a bias.
    pub qkv_bias: bool,
    /// Whether the attention's output projection has a bias.
    pub o_bias: bool,
    /// Whether gate, up and down projections have a bias.
    pub mlp_bias: bool,
    /// Whether q and k are RMS-normed per head before RoPE (Qwen3).
    pub qk_norm: bool,
    /// For each layer the number of latest tokens its attention sees, itself included; `None`
    /// sees all, as does a window of `max_position_embeddings` or more.
    pub sliding_window: Vec<Option<usize>>,
    /// EOS ids: `generation_config.json`, else `config.json`, else the family's default; may be
    /// empty. Ids outside the vocabulary, which no step can return, are left out.
    pub eos_token_ids: Vec<u32>,
    /// BOS id, from the same places.
    pub bos_token_id: Option<u32>,
}

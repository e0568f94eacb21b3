//! What a model is: `config.json` and `generation_config.json` in Hugging Face layout, or the keys of a
//! GGUF file.

mod parse;

pub(crate) use parse::BOTH_WAYS;

use crate::architecture::{Architecture, Parameter, Role, Rope, RopeScaling};
use crate::families::Family;

/// A language model's shape and options, under Hugging Face's names.
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
    /// Most tokens the model was made for, as it [is now](Self::with_context).
    pub max_position_embeddings: usize,
    /// Most tokens that it can be asked for: `max_position_embeddings` of `config.json`, or what YaRN stretches the
    /// context to that it names, where that is more.
    pub longest_context: usize,
    /// Epsilon of every RMS norm; families of layer norms have theirs in [the architecture](Self::architecture).
    pub rms_norm_eps: f64,
    /// Whether the output projection is the embedding matrix.
    pub tie_word_embeddings: bool,
    /// What it computes, and with which parameters.
    pub architecture: Architecture,
    /// EOS ids: `generation_config.json`, else `config.json`, else the family's default; may be
    /// empty. Ids outside the vocabulary, which no step can return, are left out.
    pub eos_token_ids: Vec<u32>,
    /// BOS id, from the same places.
    pub bos_token_id: Option<u32>,
    /// Ids that the model must not generate, `suppress_tokens` of `generation_config.json`, whatever their
    /// logits are: they stand for pieces of images and the like. Mostly none.
    pub suppress_tokens: Vec<u32>,
    /// How its makers have its answers sampled.
    pub sampling: Sampling,
}

/// How a model's makers have its answers sampled: `generation_config.json`, or the keys `general.sampling.*` of a
/// GGUF file. What is not said, or is no value that the field may have, is `None`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Sampling {
    /// 0 takes the most likely token.
    pub temperature: Option<f32>,
    /// Keeps this many of the most likely tokens; 0 keeps all.
    pub top_k: Option<usize>,
    /// Keeps the fewest most likely tokens whose probabilities reach this sum, above 0.
    pub top_p: Option<f32>,
    /// Keeps tokens at least this fraction as likely as the most likely one.
    pub min_p: Option<f32>,
    /// Makes all tokens of the prompt and the answer less likely, where it is above 1.
    pub repetition_penalty: Option<f32>,
}

impl ModelConfig {
    /// The matrix that gives logits, `[vocab_size, hidden_size]`: the embedding where the two are
    /// tied. What [makes no tokens](Architecture::makes_tokens) has none.
    pub fn output(&self) -> Option<&Parameter> {
        let Architecture { embedding, output, .. } = &self.architecture;
        output.as_ref().map(|output| if self.tie_word_embeddings { embedding } else { output })
    }

    /// Every tensor that the model needs, each once, in the order in which a token meets them.
    pub fn tensors(&self) -> impl Iterator<Item = &Parameter> {
        let tied = self.tie_word_embeddings;
        self.architecture.parameters().filter(move |it| !(tied && it.role == Role::Output))
    }

    /// The same for `tokens` at most, or for as many as the model was made for. A model that rotates
    /// otherwise beyond its original context ([`RopeScaling::LongRope`]) is one of that context unless
    /// more tokens are asked for.
    #[must_use]
    pub fn with_context(mut self, tokens: Option<usize>) -> Self {
        for rope in &mut self.architecture.ropes {
            if let RopeScaling::LongRope { original_max_position_embeddings: original, .. } =
                rope.scaling
                && tokens.is_none_or(|tokens| tokens <= original)
            {
                self.max_position_embeddings = self.max_position_embeddings.min(original);
            }
            rope.positions = self.max_position_embeddings;
        }
        self
    }

    /// How queries and keys are rotated, by the layers that see everything where others have a way of
    /// their own.
    pub fn rope(&self) -> &Rope {
        &self.architecture.ropes[0]
    }

    /// Number of parameters.
    pub fn parameter_count(&self) -> usize {
        self.tensors().map(Parameter::elements).sum()
    }
}

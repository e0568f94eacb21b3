//! candle-transformers' models behind one type, and what they cannot do.

use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor};
use candle_nn::{Activation, VarBuilder};
use candle_transformers::models::{llama, mistral, qwen2, qwen3};
use checkpoint::config::{Family, ModelConfig, RopeScaling};

use crate::Error;

/// A model with its KV cache. Cloning shares the weights and the cached tensors.
#[derive(Clone)]
pub(super) enum Model {
    Llama { model: Arc<llama::Llama>, cache: llama::Cache, empty: llama::Cache },
    Mistral(mistral::Model),
    Qwen2(qwen2::ModelForCausalLM),
    Qwen3(qwen3::ModelForCausalLM),
}

impl Model {
    /// A model with room for `context` tokens: the length of its rotary tables.
    pub(super) fn new(config: &ModelConfig, context: usize, vb: VarBuilder) -> Result<Self> {
        Ok(match config.family {
            Family::Llama => {
                let config = llama(config, context);
                let cache = llama::Cache::new(true, DType::F32, &config, &Device::Cpu)?;
                let model = Arc::new(llama::Llama::load(vb, &config)?);
                Self::Llama { model, empty: cache.clone(), cache }
            }
            Family::Mistral => Self::Mistral(mistral::Model::new(&mistral(config, context), vb)?),
            Family::Qwen2 => {
                Self::Qwen2(qwen2::ModelForCausalLM::new(&qwen2(config, context), vb)?)
            }
            Family::Qwen3 => {
                Self::Qwen3(qwen3::ModelForCausalLM::new(&qwen3(config, context), vb)?)
            }
        })
    }

    /// Appends `tokens`, `[1, n]`, at `position`; logits of the last one, `vocab_size` elements.
    pub(super) fn forward(&mut self, tokens: &Tensor, position: usize) -> Result<Tensor> {
        match self {
            Self::Llama { model, cache, .. } => model.forward(tokens, position, cache),
            Self::Mistral(model) => model.forward(tokens, position),
            Self::Qwen2(model) => model.forward(tokens, position),
            Self::Qwen3(model) => model.forward(tokens, position),
        }
    }

    /// Empties the KV cache.
    pub(super) fn clear(&mut self) {
        match self {
            Self::Llama { cache, empty, .. } => *cache = empty.clone(),
            Self::Mistral(model) => model.clear_kv_cache(),
            Self::Qwen2(model) => model.clear_kv_cache(),
            Self::Qwen3(model) => model.clear_kv_cache(),
        }
    }
}

/// Refuses what candle-transformers would compute wrongly or not at all, all of it at once.
pub(super) fn check_supported(config: &ModelConfig) -> crate::Result<()> {
    use Family::{Llama, Mistral, Qwen2, Qwen3};

    let family = config.family;
    let mut missing = Vec::new();
    let biases = match family {
        Llama | Mistral => config.qkv_bias || config.o_bias,
        Qwen2 => !config.qkv_bias || config.o_bias,
        Qwen3 => config.qkv_bias != config.o_bias,
    };
    if biases {
        let other =
            if family == Qwen2 { "other attention biases than q, k, v" } else { "attention_bias" };
        missing.push(other.to_owned());
    }
    if config.mlp_bias {
        missing.push("mlp_bias".to_owned());
    }
    let quotient = config.hidden_size / config.num_attention_heads;
    if matches!(family, Llama | Qwen2) && config.head_dim != quotient {
        missing.push(format!(
            "head_dim {} that is not hidden_size / num_attention_heads",
            config.head_dim
        ));
    }
    match config.rope_scaling {
        RopeScaling::None => {}
        RopeScaling::Llama3 { .. } if family == Llama => {}
        RopeScaling::Llama3 { .. } => missing.push("rope_type llama3".to_owned()),
        RopeScaling::Linear { .. } => missing.push("rope_type linear".to_owned()),
    }
    // candle's mask is one token wider than Hugging Face's and does not apply to decoding.
    if let Some(window) = config.sliding_window.iter().flatten().next() {
        missing.push(format!("a sliding_window of {window}"));
    }
    if missing.is_empty() {
        return Ok(());
    }
    Err(Error::Unsupported(format!(
        "candle-transformers does not support {} for {}: use the iree engine",
        missing.join(", "),
        family.architecture()
    )))
}

fn llama(config: &ModelConfig, context: usize) -> llama::Config {
    let rope_scaling = match config.rope_scaling {
        RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_max_position_embeddings,
        } => Some(llama::Llama3RopeConfig {
            factor: factor as f32,
            low_freq_factor: low_freq_factor as f32,
            high_freq_factor: high_freq_factor as f32,
            original_max_position_embeddings,
            rope_type: llama::Llama3RopeType::Llama3,
        }),
        _ => None,
    };
    llama::Config {
        hidden_size: config.hidden_size,
        intermediate_size: config.intermediate_size,
        vocab_size: config.vocab_size,
        num_hidden_layers: config.num_hidden_layers,
        num_attention_heads: config.num_attention_heads,
        num_key_value_heads: config.num_key_value_heads,
        use_flash_attn: false,
        rms_norm_eps: config.rms_norm_eps,
        rope_theta: config.rope_theta as f32,
        bos_token_id: None,
        eos_token_id: None,
        rope_scaling,
        max_position_embeddings: context,
        tie_word_embeddings: config.tie_word_embeddings,
    }
}

fn mistral(config: &ModelConfig, context: usize) -> mistral::Config {
    mistral::Config {
        vocab_size: config.vocab_size,
        hidden_size: config.hidden_size,
        intermediate_size: config.intermediate_size,
        num_hidden_layers: config.num_hidden_layers,
        num_attention_heads: config.num_attention_heads,
        head_dim: Some(config.head_dim),
        num_key_value_heads: config.num_key_value_heads,
        hidden_act: Activation::Silu,
        max_position_embeddings: context,
        rms_norm_eps: config.rms_norm_eps,
        rope_theta: config.rope_theta,
        sliding_window: None,
        use_flash_attn: false,
    }
}

fn qwen2(config: &ModelConfig, context: usize) -> qwen2::Config {
    qwen2::Config {
        vocab_size: config.vocab_size,
        hidden_size: config.hidden_size,
        intermediate_size: config.intermediate_size,
        num_hidden_layers: config.num_hidden_layers,
        num_attention_heads: config.num_attention_heads,
        num_key_value_heads: config.num_key_value_heads,
        max_position_embeddings: context,
        // candle masks by the window whether or not it is used: one that never bites.
        sliding_window: context,
        max_window_layers: config.num_hidden_layers,
        tie_word_embeddings: config.tie_word_embeddings,
        rope_theta: config.rope_theta,
        rms_norm_eps: config.rms_norm_eps,
        use_sliding_window: false,
        hidden_act: Activation::Silu,
    }
}

fn qwen3(config: &ModelConfig, context: usize) -> qwen3::Config {
    qwen3::Config {
        vocab_size: config.vocab_size,
        hidden_size: config.hidden_size,
        intermediate_size: config.intermediate_size,
        num_hidden_layers: config.num_hidden_layers,
        num_attention_heads: config.num_attention_heads,
        head_dim: config.head_dim,
        attention_bias: config.qkv_bias,
        num_key_value_heads: config.num_key_value_heads,
        max_position_embeddings: context,
        sliding_window: None,
        max_window_layers: config.num_hidden_layers,
        tie_word_embeddings: config.tie_word_embeddings,
        rope_theta: config.rope_theta,
        rms_norm_eps: config.rms_norm_eps,
        use_sliding_window: false,
        hidden_act: Activation::Silu,
    }
}

//! Granite 3 (`modeling_granite.py`): as Llama, with multipliers of embeddings, scores, logits and of what
//! is added to the residual stream.

use super::{Defaults, Family, Sizes};
use crate::Result;
use crate::architecture::{Activation, Architecture, Logits};
use crate::keys::Keys;

pub(super) static FAMILY: Family = Family {
    model_type: "granite",
    class: "GraniteForCausalLM",
    // `configuration_granite.py` in transformers 5.
    defaults: Defaults {
        vocab_size: 32_000,
        hidden_size: 4096,
        intermediate_size: 11_008,
        num_hidden_layers: 32,
        num_attention_heads: 32,
        num_key_value_heads: None,
        head_dim: None,
        max_position_embeddings: 2048,
        rms_norm_eps: 1e-6,
        rope_theta: 10_000.0,
        tie_word_embeddings: false,
        bos_token_id: Some(1),
        eos_token_ids: &[2],
    },
    architecture,
};

fn architecture(keys: &Keys, sizes: &Sizes) -> Result<Architecture> {
    let activation = Activation::read(keys, "hidden_act", Activation::Silu)?;
    let attention_bias = keys.boolean("attention_bias")?.unwrap_or(false);
    let mlp_bias = keys.boolean("mlp_bias")?.unwrap_or(false);
    let multipliers = Multipliers::read(keys)?;
    Ok(multipliers.of(sizes.decoder(vec![sizes.rope(keys)?], |layer, _| {
        let attention = sizes.attention(layer, [attention_bias; 2]);
        sizes.layer(layer, attention, sizes.mlp(layer, mlp_bias, activation))
    })))
}

/// What Granite's models multiply with.
pub(super) struct Multipliers {
    scores: f32,
    residual: f32,
    embedding: f32,
    logits: f32,
}

impl Multipliers {
    pub fn read(keys: &Keys) -> Result<Self> {
        let multiplier = |key| Ok::<_, crate::Error>(keys.positive(key)?.unwrap_or(1.0) as f32);
        Ok(Self {
            scores: multiplier("attention_multiplier")?,
            residual: multiplier("residual_multiplier")?,
            embedding: multiplier("embedding_multiplier")?,
            logits: 1.0 / multiplier("logits_scaling")?,
        })
    }

    /// A model with them.
    pub fn of(&self, mut model: Architecture) -> Architecture {
        for layer in &mut model.layers {
            if let Some(attention) = layer.attention_mut() {
                attention.scale = self.scores;
            }
            layer.residual_scale = self.residual;
        }
        let logits = Logits { scale: self.logits, cap: None };
        Architecture { embedding_scale: self.embedding, logits, ..model }
    }
}

//! Gemma 1 and CodeGemma (`modeling_gemma.py`): as Llama, with what all Gemmas have.

use super::gemma2::{activation_or, gemma};
use super::{Defaults, Family, Sizes};
use crate::Result;
use crate::architecture::{Activation, Architecture};
use crate::keys::Keys;

pub(super) static FAMILY: Family = Family {
    model_type: "gemma",
    class: "GemmaForCausalLM",
    // `configuration_gemma.py` in transformers 5.
    defaults: Defaults {
        vocab_size: 256_000,
        hidden_size: 3072,
        intermediate_size: 24_576,
        num_hidden_layers: 28,
        num_attention_heads: 16,
        num_key_value_heads: Some(16),
        head_dim: Some(256),
        max_position_embeddings: 8192,
        rms_norm_eps: 1e-6,
        rope_theta: 10_000.0,
        tie_word_embeddings: true,
        bos_token_id: Some(2),
        eos_token_ids: &[1],
    },
    architecture,
};

fn architecture(keys: &Keys, sizes: &Sizes) -> Result<Architecture> {
    // "gelu" has always meant the same here; older files say it under Gemma 2's key.
    let activation = match keys.string("hidden_act")? {
        Some("gelu") => Activation::GeluTanh,
        _ => Activation::read(keys, "hidden_act", Activation::GeluTanh)?,
    };
    let activation = activation_or(keys, activation)?;
    let bias = keys.boolean("attention_bias")?.unwrap_or(false);
    let architecture = sizes.decoder(vec![sizes.rope(keys)?], |layer, _| {
        let attention = sizes.attention(layer, [bias; 2]);
        sizes.layer(layer, attention, sizes.mlp(layer, false, activation))
    });
    Ok(gemma(keys, sizes, architecture))
}

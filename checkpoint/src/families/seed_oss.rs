//! Seed-OSS (`modeling_seed_oss.py`): as Llama, with biases of its own.

use super::{Defaults, Family, Sizes};
use crate::Result;
use crate::architecture::{Activation, Architecture};
use crate::keys::Keys;

pub(super) static FAMILY: Family = Family {
    model_type: "seed_oss",
    class: "SeedOssForCausalLM",
    // `configuration_seed_oss.py` in transformers 5.
    defaults: Defaults {
        vocab_size: 155_136,
        hidden_size: 4096,
        intermediate_size: 27_648,
        num_hidden_layers: 64,
        num_attention_heads: 80,
        num_key_value_heads: Some(8),
        head_dim: Some(128),
        max_position_embeddings: 524_288,
        rms_norm_eps: 1e-6,
        rope_theta: 10_000.0,
        tie_word_embeddings: false,
        bos_token_id: Some(0),
        eos_token_ids: &[2],
    },
    architecture,
};

fn architecture(keys: &Keys, sizes: &Sizes) -> Result<Architecture> {
    let activation = Activation::read(keys, "hidden_act", Activation::Silu)?;
    let bias = |key, default| Ok::<_, crate::Error>(keys.boolean(key)?.unwrap_or(default));
    let biases = [bias("attention_bias", true)?, bias("attention_out_bias", false)?];
    let mlp_bias = bias("mlp_bias", false)?;
    Ok(sizes.decoder(vec![sizes.rope(keys)?], |layer, _| {
        let attention = sizes.attention(layer, biases);
        sizes.layer(layer, attention, sizes.mlp(layer, mlp_bias, activation))
    }))
}

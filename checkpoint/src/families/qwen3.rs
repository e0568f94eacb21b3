//! Qwen3 (`modeling_qwen3.py`): queries and keys are normed, head by head.

use super::qwen2::windows;
use super::{Defaults, Family, Sizes};
use crate::Result;
use crate::architecture::{Activation, Architecture, Attention};
use crate::keys::Keys;

pub(super) static FAMILY: Family = Family {
    model_type: "qwen3",
    class: "Qwen3ForCausalLM",
    // `configuration_qwen3.py` in transformers 5.
    defaults: Defaults {
        vocab_size: 151_936,
        hidden_size: 4096,
        intermediate_size: 22_016,
        num_hidden_layers: 32,
        num_attention_heads: 32,
        num_key_value_heads: Some(32),
        head_dim: Some(128),
        max_position_embeddings: 32_768,
        rms_norm_eps: 1e-6,
        rope_theta: 10_000.0,
        tie_word_embeddings: false,
        bos_token_id: None,
        eos_token_ids: &[],
    },
    architecture,
};

fn architecture(keys: &Keys, sizes: &Sizes) -> Result<Architecture> {
    let activation = Activation::read(keys, "hidden_act", Activation::Silu)?;
    let windows = windows(keys, sizes)?;
    let bias = keys.boolean("attention_bias")?.unwrap_or(false);
    Ok(sizes.decoder(vec![sizes.rope(keys)?], |layer, index| {
        let attention = Attention {
            qk_norm: Some(sizes.qk_norm(layer)),
            window: windows[index],
            ..sizes.attention(layer, [bias; 2])
        };
        sizes.layer(layer, attention, sizes.mlp(layer, false, activation))
    }))
}

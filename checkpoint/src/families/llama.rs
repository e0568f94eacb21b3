//! Llama 2, 3 and 3.x (`modeling_llama.py`).

use super::{Defaults, Family, Sizes};
use crate::Result;
use crate::architecture::{Activation, Architecture};
use crate::keys::Keys;

pub(super) static FAMILY: Family = Family {
    model_type: "llama",
    class: "LlamaForCausalLM",
    // `configuration_llama.py` in transformers 5.
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
    Ok(sizes.decoder(vec![sizes.rope(keys)?], |layer, _| {
        let attention = sizes.attention(layer, [attention_bias; 2]);
        sizes.layer(layer, attention, sizes.mlp(layer, mlp_bias, activation))
    }))
}

//! Qwen1.5-MoE and Qwen2-MoE (`modeling_qwen2_moe.py`): Qwen2 with experts, one of which is for all rows.

use super::experts::{QwenExperts, Routing, no_windows};
use super::{Defaults, Family, Sizes};
use crate::Result;
use crate::architecture::Architecture;
use crate::keys::Keys;

pub(super) static FAMILY: Family = Family {
    model_type: "qwen2_moe",
    class: "Qwen2MoeForCausalLM",
    // `configuration_qwen2_moe.py` in transformers 5.
    defaults: Defaults {
        vocab_size: 151_936,
        hidden_size: 2048,
        intermediate_size: 5632,
        num_hidden_layers: 24,
        num_attention_heads: 16,
        num_key_value_heads: Some(16),
        head_dim: None,
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
    let defaults = Routing { experts: 60, top_k: 4, normalised: false, width: 1408, bias: false };
    no_windows(keys)?;
    let experts = QwenExperts::read(keys, sizes, defaults, Some(5632))?;
    let bias = keys.boolean("qkv_bias")?.unwrap_or(true);
    Ok(sizes.decoder(vec![sizes.rope(keys)?], |layer, index| {
        let attention = sizes.attention(layer, [bias, false]);
        sizes.layer(layer, attention, experts.layer(sizes, layer, index))
    }))
}

//! Qwen3-MoE (`modeling_qwen3_moe.py`): Qwen3 with experts.

use super::experts::{QwenExperts, Routing, no_windows};
use super::{Defaults, Family, Sizes};
use crate::Result;
use crate::architecture::{Architecture, Attention};
use crate::keys::Keys;

pub(super) static FAMILY: Family = Family {
    model_type: "qwen3_moe",
    class: "Qwen3MoeForCausalLM",
    // `configuration_qwen3_moe.py` in transformers 5.
    defaults: Defaults {
        vocab_size: 151_936,
        hidden_size: 2048,
        intermediate_size: 6144,
        num_hidden_layers: 24,
        num_attention_heads: 32,
        num_key_value_heads: Some(4),
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
    let defaults = Routing { experts: 128, top_k: 8, normalised: false, width: 768, bias: false };
    no_windows(keys)?;
    let experts = QwenExperts::read(keys, sizes, defaults, None)?;
    let bias = keys.boolean("attention_bias")?.unwrap_or(false);
    Ok(sizes.decoder(vec![sizes.rope(keys)?], |layer, index| {
        let qk_norm = Some(sizes.qk_norm(layer));
        let attention = Attention { qk_norm, ..sizes.attention(layer, [bias; 2]) };
        sizes.layer(layer, attention, experts.layer(sizes, layer, index))
    }))
}

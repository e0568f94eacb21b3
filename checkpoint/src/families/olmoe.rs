//! OLMoE (`modeling_olmoe.py`): experts as Qwen3-MoE, with norms of all queries and of all keys of a row.

use super::experts::{NAMES, Routing};
use super::{Defaults, Family, Sizes, limit};
use crate::Result;
use crate::architecture::{Activation, Architecture, Attention, FeedForward};
use crate::keys::Keys;

pub(super) static FAMILY: Family = Family {
    model_type: "olmoe",
    class: "OlmoeForCausalLM",
    // `configuration_olmoe.py` in transformers 5.
    defaults: Defaults {
        vocab_size: 50_304,
        hidden_size: 2048,
        intermediate_size: 2048,
        num_hidden_layers: 16,
        num_attention_heads: 16,
        num_key_value_heads: None,
        head_dim: None,
        max_position_embeddings: 4096,
        rms_norm_eps: 1e-5,
        rope_theta: 10_000.0,
        tie_word_embeddings: false,
        bos_token_id: None,
        eos_token_ids: &[50_279],
    },
    architecture,
};

fn architecture(keys: &Keys, sizes: &Sizes) -> Result<Architecture> {
    let activation = Activation::read(keys, "hidden_act", Activation::Silu)?;
    if keys.value("clip_qkv").is_some() {
        return Err(keys.refuse("clip_qkv", "supported is null"));
    }
    let bias = keys.boolean("attention_bias")?.unwrap_or(false);
    let counts = ["num_experts", "num_local_experts"];
    let count = counts.into_iter().find(|key| keys.value(key).is_some()).unwrap_or("num_experts");
    let routing = Routing {
        experts: keys.size(count, limit::EXPERTS)?.unwrap_or(64),
        top_k: keys.size("num_experts_per_tok", limit::EXPERTS)?.unwrap_or(8),
        normalised: keys.boolean("norm_topk_prob")?.unwrap_or(false),
        width: sizes.intermediate_size,
        bias: false,
    };
    routing.check(keys, sizes, count, "intermediate_size")?;
    Ok(sizes.decoder(vec![sizes.rope(keys)?], |layer, _| {
        let qk_norm = Some(sizes.joint_qk_norm(layer));
        let attention = Attention { qk_norm, ..sizes.attention(layer, [bias; 2]) };
        let experts = routing.experts(sizes, &layer.at("mlp"), "gate", NAMES, activation);
        sizes.layer(layer, attention, FeedForward::Experts(Box::new(experts)))
    }))
}

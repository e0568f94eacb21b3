//! Mixtral (`modeling_mixtral.py`): Mistral with experts in every layer.

use super::experts::Routing;
use super::{Defaults, Family, Sizes, limit};
use crate::Result;
use crate::architecture::{Activation, Architecture, Attention, FeedForward};
use crate::keys::Keys;

pub(super) static FAMILY: Family = Family {
    model_type: "mixtral",
    class: "MixtralForCausalLM",
    // `configuration_mixtral.py` in transformers 5.
    defaults: Defaults {
        vocab_size: 32_000,
        hidden_size: 4096,
        intermediate_size: 14_336,
        num_hidden_layers: 32,
        num_attention_heads: 32,
        num_key_value_heads: Some(8),
        head_dim: None,
        max_position_embeddings: 4096 * 32,
        rms_norm_eps: 1e-5,
        rope_theta: 1_000_000.0,
        tie_word_embeddings: false,
        bos_token_id: Some(1),
        eos_token_ids: &[2],
    },
    architecture,
};

fn architecture(keys: &Keys, sizes: &Sizes) -> Result<Architecture> {
    let activation = Activation::read(keys, "hidden_act", Activation::Silu)?;
    let window = sizes.window(keys.size("sliding_window", usize::MAX)?);
    let routing = Routing {
        experts: keys.size("num_local_experts", limit::EXPERTS)?.unwrap_or(8),
        top_k: keys.size("num_experts_per_tok", limit::EXPERTS)?.unwrap_or(2),
        normalised: true,
        width: sizes.intermediate_size,
        bias: false,
    };
    routing.check(keys, sizes, "num_local_experts", "intermediate_size")?;
    Ok(sizes.decoder(vec![sizes.rope(keys)?], |layer, _| {
        let attention = Attention { window, ..sizes.attention(layer, [false; 2]) };
        let names = ["w1", "w3", "w2"];
        let module = layer.at("block_sparse_moe");
        let experts = routing.experts(sizes, &module, "gate", names, activation);
        sizes.layer(layer, attention, FeedForward::Experts(Box::new(experts)))
    }))
}

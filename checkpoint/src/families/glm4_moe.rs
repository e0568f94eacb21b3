//! GLM-4.5, 4.6 and their Air (`modeling_glm4_moe.py`): experts in all layers but the first ones, chosen by a sigmoid
//! of each and a bias, beside one of all rows; half of each head rotates.

use super::experts::{NAMES, Routing};
use super::{Defaults, Family, Sizes, limit};
use crate::Result;
use crate::architecture::{
    Activation, Architecture, Attention, Experts, FeedForward, SharedExpert, Shares,
};
use crate::keys::Keys;

pub(super) static FAMILY: Family = Family {
    model_type: "glm4_moe",
    class: "Glm4MoeForCausalLM",
    // `configuration_glm4_moe.py` in transformers 5.
    defaults: Defaults {
        vocab_size: 151_552,
        hidden_size: 4096,
        intermediate_size: 10_944,
        num_hidden_layers: 46,
        num_attention_heads: 96,
        num_key_value_heads: Some(8),
        head_dim: None,
        max_position_embeddings: 131_072,
        rms_norm_eps: 1e-5,
        rope_theta: 10_000.0,
        tie_word_embeddings: false,
        bos_token_id: None,
        eos_token_ids: &[],
    },
    architecture,
};

fn architecture(keys: &Keys, sizes: &Sizes) -> Result<Architecture> {
    let activation = Activation::read(keys, "hidden_act", Activation::Silu)?;
    let bias = keys.boolean("attention_bias")?.unwrap_or(false);
    let normed = keys.boolean("use_qk_norm")?.unwrap_or(false);
    for key in ["n_group", "topk_group"] {
        if keys.size(key, limit::EXPERTS)?.is_some_and(|groups| groups != 1) {
            return Err(keys.refuse(key, "supported is 1, experts that are no groups"));
        }
    }
    let counts = ["n_routed_experts", "num_local_experts"];
    let count = counts.into_iter().find(|key| keys.value(key).is_some()).unwrap_or(counts[0]);
    let routing = Routing {
        experts: keys.size(count, limit::EXPERTS)?.unwrap_or(128),
        top_k: keys.size("num_experts_per_tok", limit::EXPERTS)?.unwrap_or(8),
        normalised: keys.boolean("norm_topk_prob")?.unwrap_or(true),
        width: keys.size("moe_intermediate_size", limit::WIDTH)?.unwrap_or(1408),
        bias: false,
    };
    routing.check(keys, sizes, count, "moe_intermediate_size")?;
    let scale = keys.positive("routed_scaling_factor")?.unwrap_or(1.0) as f32;
    let dense = keys.count("first_k_dense_replace", limit::LAYERS)?.unwrap_or(1);
    let shared = routing.width * keys.size("n_shared_experts", limit::EXPERTS)?.unwrap_or(1);
    Ok(sizes.decoder(vec![sizes.partial_rope(keys, 0.5)?], |layer, index| {
        let qk_norm = normed.then(|| sizes.qk_norm(layer));
        let attention = Attention { qk_norm, ..sizes.attention(layer, [bias, false]) };
        if index < dense {
            return sizes.layer(layer, attention, sizes.mlp(layer, false, activation));
        }
        let module = layer.at("mlp");
        let of_all = module.at("shared_experts");
        let mlp = sizes.mlp_of(&of_all, NAMES, shared, false, activation);
        let bias = module.at("gate").bias("e_score_correction_bias", routing.experts);
        let experts = Experts {
            shares: Shares::Sigmoid { bias: Some(bias), floor: 1e-20 },
            scale,
            shared: Some(SharedExpert { mlp, gate: None }),
            ..routing.experts(sizes, &module, "gate", NAMES, activation)
        };
        sizes.layer(layer, attention, FeedForward::Experts(Box::new(experts)))
    }))
}

//! LFM2 and LFM2.5 with experts (`modeling_lfm2_moe.py`): in all layers but the first ones, chosen by a sigmoid
//! of each and a bias.

use super::experts::Routing;
use super::lfm2::{NAMES, decoder, mlp};
use super::{Defaults, Family, Sizes, limit};
use crate::Result;
use crate::architecture::{Activation, Architecture, Experts, FeedForward, Shares};
use crate::keys::Keys;

pub(super) static FAMILY: Family = Family {
    model_type: "lfm2_moe",
    class: "Lfm2MoeForCausalLM",
    // `configuration_lfm2_moe.py` in transformers 5.
    defaults: Defaults {
        vocab_size: 65_536,
        hidden_size: 2048,
        intermediate_size: 7168,
        num_hidden_layers: 32,
        num_attention_heads: 32,
        num_key_value_heads: Some(8),
        head_dim: None,
        max_position_embeddings: 128_000,
        rms_norm_eps: 1e-5,
        rope_theta: 1_000_000.0,
        tie_word_embeddings: true,
        bos_token_id: Some(1),
        eos_token_ids: &[2],
    },
    architecture,
};

fn architecture(keys: &Keys, sizes: &Sizes) -> Result<Architecture> {
    let routing = Routing {
        experts: keys.size("num_experts", limit::EXPERTS)?.unwrap_or(32),
        top_k: keys.size("num_experts_per_tok", limit::EXPERTS)?.unwrap_or(4),
        normalised: keys.boolean("norm_topk_prob")?.unwrap_or(true),
        width: keys.size("moe_intermediate_size", limit::WIDTH)?.unwrap_or(1792),
        bias: false,
    };
    routing.check(keys, sizes, "num_experts", "moe_intermediate_size")?;
    let biased = keys.boolean("use_expert_bias")?.unwrap_or(true);
    let scale = keys.positive("routed_scaling_factor")?.unwrap_or(1.0) as f32;
    let dense = keys.count("num_dense_layers", limit::LAYERS)?.unwrap_or(2);
    decoder(keys, sizes, |layer, index| {
        if index < dense {
            return FeedForward::Mlp(mlp(sizes, layer));
        }
        let module = layer.at("feed_forward");
        let bias = biased.then(|| module.bias("expert_bias", routing.experts));
        FeedForward::Experts(Box::new(Experts {
            shares: Shares::Sigmoid { bias, floor: 1e-6 },
            scale,
            ..routing.experts(sizes, &module, "gate", NAMES, Activation::Silu)
        }))
    })
}

//! gpt-oss (`modeling_gpt_oss.py`): experts with biases in every layer, behind a gate that is clamped;
//! every other layer has a window, and each head a sink.

use super::experts::Routing;
use super::window::alternating;
use super::{Defaults, Family, Sizes, limit};
use crate::Result;
use crate::architecture::{Activation, Architecture, Attention, FeedForward};
use crate::keys::Keys;
use crate::rope::{Rope, RopeScaling};

pub(super) static FAMILY: Family = Family {
    model_type: "gpt_oss",
    class: "GptOssForCausalLM",
    // `configuration_gpt_oss.py` in transformers 5.
    defaults: Defaults {
        vocab_size: 201_088,
        hidden_size: 2880,
        intermediate_size: 2880,
        num_hidden_layers: 36,
        num_attention_heads: 64,
        num_key_value_heads: Some(8),
        head_dim: Some(64),
        max_position_embeddings: 131_072,
        rms_norm_eps: 1e-5,
        rope_theta: 150_000.0,
        tie_word_embeddings: false,
        bos_token_id: None,
        eos_token_ids: &[],
    },
    architecture,
};

fn architecture(keys: &Keys, sizes: &Sizes) -> Result<Architecture> {
    if keys.string("hidden_act")?.is_some_and(|it| it != "silu") {
        return Err(keys.refuse("hidden_act", "supported is \"silu\", which stands for its own"));
    }
    let number = |key, default| Ok::<_, crate::Error>(keys.positive(key)?.unwrap_or(default));
    let activation = Activation::Clamped {
        alpha: number("swiglu_alpha", 1.702)? as f32,
        limit: number("swiglu_limit", 7.0)? as f32,
    };
    let bias = keys.boolean("attention_bias")?.unwrap_or(true);
    let routing = Routing {
        experts: keys.size("num_local_experts", limit::EXPERTS)?.unwrap_or(128),
        top_k: keys.size("num_experts_per_tok", limit::EXPERTS)?.unwrap_or(4),
        // A softmax of those that were chosen.
        normalised: true,
        width: sizes.intermediate_size,
        bias: true,
    };
    routing.check(keys, sizes, "num_local_experts", "intermediate_size")?;
    let (sliding, window) = alternating(keys, sizes, 128, |layer| layer.is_multiple_of(2))?;
    Ok(sizes.decoder(vec![rope(keys, sizes)?], |layer, index| {
        let attention = Attention {
            sinks: Some(layer.at("self_attn").sinks("sinks", sizes.heads)),
            window: window.filter(|_| sliding[index]),
            ..sizes.attention(layer, [bias; 2])
        };
        let names = ["gate_proj", "up_proj", "down_proj"];
        let experts = routing.experts(sizes, &layer.at("mlp"), "router", names, activation);
        sizes.layer(layer, attention, FeedForward::Experts(Box::new(experts)))
    }))
}

/// Stretched, also where the configuration does not say so.
fn rope(keys: &Keys, sizes: &Sizes) -> Result<Rope> {
    let rope = sizes.rope(keys)?;
    if ["rope_parameters", "rope_scaling"].iter().any(|key| keys.value(key).is_some()) {
        return Ok(rope);
    }
    let factor = 32.0_f64;
    let scaling = RopeScaling::Yarn {
        factor,
        beta_fast: 32.0,
        beta_slow: 1.0,
        truncate: false,
        attention_factor: 0.1 * factor.ln() + 1.0,
        original_max_position_embeddings: 4096,
    };
    Ok(Rope { scaling, ..rope })
}

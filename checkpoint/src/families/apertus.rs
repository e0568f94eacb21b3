//! Apertus (`modeling_apertus.py`): norms of queries and keys as Qwen3's, and an MLP without a gate, whose
//! activation has learned numbers.

use super::{Defaults, Family, Sizes};
use crate::Result;
use crate::architecture::{Activation, Architecture, Attention, FeedForward, Layer, Mlp, Module};
use crate::keys::Keys;
use crate::rope::{Rope, RopeScaling};

pub(super) static FAMILY: Family = Family {
    model_type: "apertus",
    class: "ApertusForCausalLM",
    // `configuration_apertus.py` in transformers 5.
    defaults: Defaults {
        vocab_size: 131_072,
        hidden_size: 4096,
        intermediate_size: 14_336,
        num_hidden_layers: 32,
        num_attention_heads: 32,
        num_key_value_heads: None,
        head_dim: None,
        max_position_embeddings: 65_536,
        rms_norm_eps: 1e-5,
        rope_theta: 12_000_000.0,
        tie_word_embeddings: false,
        bos_token_id: Some(1),
        eos_token_ids: &[2],
    },
    architecture,
};

fn architecture(keys: &Keys, sizes: &Sizes) -> Result<Architecture> {
    if keys.string("hidden_act")?.is_some_and(|it| it != "xielu") {
        return Err(keys.refuse("hidden_act", "supported is \"xielu\""));
    }
    let bias = keys.boolean("attention_bias")?.unwrap_or(false);
    Ok(sizes.decoder(vec![rope(keys, sizes)?], |layer, _| {
        let qk_norm = Some(sizes.qk_norm(layer));
        let attention = Attention { qk_norm, ..sizes.attention(layer, [bias; 2]) };
        Layer {
            input_norm: Some(sizes.norm(layer, "attention_layernorm")),
            mlp_norm: Some(sizes.norm(layer, "feedforward_layernorm")),
            ..sizes.layer(layer, attention, FeedForward::Mlp(mlp(sizes, layer)))
        }
    }))
}

fn mlp(sizes: &Sizes, layer: &Module) -> Mlp {
    let learned = layer.at("mlp").at("act_fn");
    Mlp {
        learned: vec![
            learned.number("alpha_p", &[1]),
            learned.number("alpha_n", &[1]),
            learned.number("beta", &[]),
            learned.number("eps", &[]),
        ],
        ..sizes.ungated_mlp(layer, ["up_proj", "down_proj"], false, Activation::Xielu)
    }
}

/// Stretched, and of this family's base, where the configuration does not say how it is.
fn rope(keys: &Keys, sizes: &Sizes) -> Result<Rope> {
    let rope = sizes.rope(keys)?;
    if ["rope_parameters", "rope_scaling"].iter().any(|key| keys.value(key).is_some()) {
        return Ok(rope);
    }
    let scaling = RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings: 8192,
    };
    Ok(Rope { theta: FAMILY.defaults.rope_theta, scaling, ..rope })
}

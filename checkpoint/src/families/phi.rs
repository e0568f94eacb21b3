//! Phi-1, 1.5 and 2 (`modeling_phi.py`): attention and MLP in parallel behind one layer norm, biases in all projections and of
//! the output, an MLP without a gate, and a part of each head rotates.

use super::{Defaults, Family, Sizes};
use crate::Result;
use crate::architecture::{Activation, Architecture, Attention, FeedForward, Layer, Module};
use crate::keys::Keys;

pub(super) static FAMILY: Family = Family {
    model_type: "phi",
    class: "PhiForCausalLM",
    // `configuration_phi.py` in transformers 5.
    defaults: Defaults {
        vocab_size: 51_200,
        hidden_size: 2048,
        intermediate_size: 8192,
        num_hidden_layers: 24,
        num_attention_heads: 32,
        num_key_value_heads: None,
        head_dim: None,
        max_position_embeddings: 2048,
        rms_norm_eps: 1e-5,
        rope_theta: 10_000.0,
        tie_word_embeddings: false,
        bos_token_id: Some(1),
        eos_token_ids: &[2],
    },
    architecture,
};

fn architecture(keys: &Keys, sizes: &Sizes) -> Result<Architecture> {
    let activation = Activation::read(keys, "hidden_act", Activation::GeluTanh)?;
    if keys.boolean("qk_layernorm")?.unwrap_or(false) {
        // They have biases; no published model does.
        return Err(keys.refuse("qk_layernorm", "supported is false"));
    }
    let epsilon = keys.positive("layer_norm_eps")?.unwrap_or(sizes.rms_norm_eps);
    let (hidden, width) = (sizes.hidden_size, sizes.query_width());
    let model =
        sizes.layer_normed_decoder(vec![sizes.partial_rope(keys, 0.5)?], epsilon, |layer, _| {
            let attention = Attention {
                output: layer.at("self_attn").linear("dense", [hidden, width], true),
                ..sizes.attention(layer, [true; 2])
            };
            let mlp = sizes.ungated_mlp(layer, ["fc1", "fc2"], true, activation);
            let layer = sizes.layer(layer, attention, FeedForward::Mlp(mlp));
            Layer { mlp_norm: None, parallel: true, ..layer }
        });
    Ok(Architecture {
        norm: Module::new("model").layer_norm("final_layernorm", hidden, epsilon),
        output_bias: Some(Module::new("lm_head").bias("bias", sizes.vocab_size)),
        ..model
    })
}

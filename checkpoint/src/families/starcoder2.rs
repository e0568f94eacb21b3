//! StarCoder 2 (`modeling_starcoder2.py`): layer norms, biases in all projections, and an MLP without a gate.

use super::{Defaults, Family, Sizes, limit};
use crate::Result;
use crate::architecture::{Activation, Architecture, Attention, FeedForward};
use crate::keys::Keys;

pub(super) static FAMILY: Family = Family {
    model_type: "starcoder2",
    class: "Starcoder2ForCausalLM",
    // `configuration_starcoder2.py` in transformers 5.
    defaults: Defaults {
        vocab_size: 49_152,
        hidden_size: 3072,
        intermediate_size: 12_288,
        num_hidden_layers: 30,
        num_attention_heads: 24,
        num_key_value_heads: Some(2),
        head_dim: None,
        max_position_embeddings: 4096,
        rms_norm_eps: 1e-5,
        rope_theta: 10_000.0,
        tie_word_embeddings: true,
        bos_token_id: Some(50_256),
        eos_token_ids: &[50_256],
    },
    architecture,
};

fn architecture(keys: &Keys, sizes: &Sizes) -> Result<Architecture> {
    let activation = Activation::read(keys, "hidden_act", Activation::GeluTanh)?;
    let bias = keys.boolean("use_bias")?.unwrap_or(true);
    let epsilon = keys.positive("norm_epsilon")?.unwrap_or(sizes.rms_norm_eps);
    let window = sizes.window(keys.size("sliding_window", limit::POSITIONS)?);
    Ok(sizes.layer_normed_decoder(vec![sizes.rope(keys)?], epsilon, |layer, _| {
        let mlp = sizes.ungated_mlp(layer, ["c_fc", "c_proj"], bias, activation);
        let attention = Attention { window, ..sizes.attention(layer, [bias; 2]) };
        sizes.layer(layer, attention, FeedForward::Mlp(mlp))
    }))
}

//! Arcee, AFM (`modeling_arcee.py`): as Llama, with an MLP that has no gate.

use super::{Defaults, Family, Sizes};
use crate::Result;
use crate::architecture::{Activation, Architecture, FeedForward, Mlp};
use crate::keys::Keys;

pub(super) static FAMILY: Family = Family {
    model_type: "arcee",
    class: "ArceeForCausalLM",
    // `configuration_arcee.py` in transformers 5.
    defaults: Defaults {
        vocab_size: 32_000,
        hidden_size: 2560,
        intermediate_size: 18_432,
        num_hidden_layers: 32,
        num_attention_heads: 32,
        num_key_value_heads: None,
        head_dim: None,
        max_position_embeddings: 4096,
        rms_norm_eps: 1e-5,
        rope_theta: 10_000.0,
        tie_word_embeddings: false,
        bos_token_id: Some(128_000),
        eos_token_ids: &[128_001],
    },
    architecture,
};

fn architecture(keys: &Keys, sizes: &Sizes) -> Result<Architecture> {
    if keys.string("hidden_act")?.is_some_and(|it| it != "relu2") {
        return Err(keys.refuse("hidden_act", "supported is \"relu2\""));
    }
    let attention_bias = keys.boolean("attention_bias")?.unwrap_or(false);
    let mlp_bias = keys.boolean("mlp_bias")?.unwrap_or(false);
    let (wide, hidden) = (sizes.intermediate_size, sizes.hidden_size);
    Ok(sizes.decoder(vec![sizes.rope(keys)?], |layer, _| {
        let module = layer.at("mlp");
        let mlp = FeedForward::Mlp(Mlp {
            gate_up: vec![module.linear("up_proj", [wide, hidden], mlp_bias)],
            down: module.linear("down_proj", [hidden, wide], mlp_bias),
            activation: Activation::ReluSquared,
            learned: Vec::new(),
        });
        sizes.layer(layer, sizes.attention(layer, [attention_bias; 2]), mlp)
    }))
}

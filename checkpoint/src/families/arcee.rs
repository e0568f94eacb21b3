//! Arcee, AFM (`modeling_arcee.py`): as Llama, with an MLP that has no gate.

use super::{Defaults, Family, Sizes};
use crate::Result;
use crate::architecture::Architecture;
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
    let mlp = sizes.squared_mlp(keys)?;
    let bias = keys.boolean("attention_bias")?.unwrap_or(false);
    Ok(sizes.decoder(vec![sizes.rope(keys)?], |layer, _| {
        sizes.layer(layer, sizes.attention(layer, [bias; 2]), mlp(layer))
    }))
}

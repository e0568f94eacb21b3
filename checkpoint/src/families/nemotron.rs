//! Nemotron-4, Minitron and Nemotron Mini (`modeling_nemotron.py`): layer norms of one plus their weight, an MLP without a gate
//! that squares what is above zero, and half of each head rotates.

use super::{Defaults, Family, Sizes, parts};
use crate::Result;
use crate::architecture::Architecture;
use crate::keys::Keys;

pub(super) static FAMILY: Family = Family {
    model_type: "nemotron",
    class: "NemotronForCausalLM",
    // `configuration_nemotron.py` in transformers 5.
    defaults: Defaults {
        vocab_size: 256_000,
        hidden_size: 6144,
        intermediate_size: 24_576,
        num_hidden_layers: 32,
        num_attention_heads: 48,
        num_key_value_heads: None,
        head_dim: None,
        max_position_embeddings: 4096,
        rms_norm_eps: 1e-5,
        rope_theta: 10_000.0,
        tie_word_embeddings: false,
        bos_token_id: Some(2),
        eos_token_ids: &[3],
    },
    architecture,
};

fn architecture(keys: &Keys, sizes: &Sizes) -> Result<Architecture> {
    let mlp = sizes.squared_mlp(keys)?;
    let bias = keys.boolean("attention_bias")?.unwrap_or(false);
    let epsilon = keys.positive("norm_eps")?.unwrap_or(sizes.rms_norm_eps);
    let rope = sizes.partial_rope(keys, 0.5)?;
    let model = sizes.layer_normed_decoder(vec![rope], epsilon, |layer, _| {
        sizes.layer(layer, sizes.attention(layer, [bias; 2]), mlp(layer))
    });
    Ok(parts::one_more(keys, model))
}

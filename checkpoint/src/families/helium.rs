//! Helium (`modeling_helium.py`): as Llama, with pairs of neighbours rotated.

use super::{Defaults, Family, Sizes};
use crate::Result;
use crate::architecture::{Activation, Architecture};
use crate::keys::Keys;
use crate::rope::Rope;

pub(super) static FAMILY: Family = Family {
    model_type: "helium",
    class: "HeliumForCausalLM",
    // `configuration_helium.py` in transformers 5.
    defaults: Defaults {
        vocab_size: 48_000,
        hidden_size: 2560,
        intermediate_size: 7040,
        num_hidden_layers: 24,
        num_attention_heads: 20,
        num_key_value_heads: Some(20),
        head_dim: Some(128),
        max_position_embeddings: 4096,
        rms_norm_eps: 1e-8,
        rope_theta: 100_000.0,
        tie_word_embeddings: false,
        bos_token_id: Some(1),
        eos_token_ids: &[2],
    },
    architecture,
};

fn architecture(keys: &Keys, sizes: &Sizes) -> Result<Architecture> {
    let activation = Activation::read(keys, "hidden_act", Activation::Silu)?;
    let attention_bias = keys.boolean("attention_bias")?.unwrap_or(false);
    let mlp_bias = keys.boolean("mlp_bias")?.unwrap_or(false);
    let rope = Rope { interleaved: true, ..sizes.rope(keys)? };
    Ok(sizes.decoder(vec![rope], |layer, _| {
        let mlp = sizes.mlp(layer, mlp_bias, activation);
        sizes.layer(layer, sizes.attention(layer, [attention_bias, false]), mlp)
    }))
}

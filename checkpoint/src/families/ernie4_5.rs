//! ERNIE 4.5 where it is dense (`modeling_ernie4_5.py`): as Llama, with neighbours as pairs of a rotation.

use super::{Defaults, Family, Sizes};
use crate::Result;
use crate::architecture::{Activation, Architecture};
use crate::keys::Keys;
use crate::rope::Rope;

pub(super) static FAMILY: Family = Family {
    model_type: "ernie4_5",
    class: "Ernie4_5ForCausalLM",
    // `configuration_ernie4_5.py` in transformers 5.
    defaults: Defaults {
        vocab_size: 103_424,
        hidden_size: 1024,
        intermediate_size: 3072,
        num_hidden_layers: 18,
        num_attention_heads: 16,
        num_key_value_heads: Some(2),
        head_dim: Some(128),
        max_position_embeddings: 131_072,
        rms_norm_eps: 1e-5,
        rope_theta: 500_000.0,
        tie_word_embeddings: true,
        bos_token_id: Some(1),
        eos_token_ids: &[2],
    },
    architecture,
};

fn architecture(keys: &Keys, sizes: &Sizes) -> Result<Architecture> {
    let activation = Activation::read(keys, "hidden_act", Activation::Silu)?;
    let bias = keys.boolean("use_bias")?.unwrap_or(false);
    let rope = Rope { interleaved: true, ..sizes.rope(keys)? };
    Ok(sizes.decoder(vec![rope], |layer, _| {
        let attention = sizes.attention(layer, [bias; 2]);
        sizes.layer(layer, attention, sizes.mlp(layer, bias, activation))
    }))
}

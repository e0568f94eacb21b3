//! GLM-4-0414 (`modeling_glm4.py`): norms on both sides of attention and MLP, one projection to gate and
//! up, half of each head rotated, in pairs of neighbours.

use super::{Defaults, Family, Sizes};
use crate::Result;
use crate::architecture::{Activation, Architecture, Layer};
use crate::keys::Keys;
use crate::rope::Rope;

pub(super) static FAMILY: Family = Family {
    model_type: "glm4",
    class: "Glm4ForCausalLM",
    // `configuration_glm4.py` in transformers 5.
    defaults: Defaults {
        vocab_size: 151_552,
        hidden_size: 4096,
        intermediate_size: 13_696,
        num_hidden_layers: 40,
        num_attention_heads: 32,
        num_key_value_heads: Some(2),
        head_dim: Some(128),
        max_position_embeddings: 131_072,
        rms_norm_eps: 0.000_000_156_25,
        rope_theta: 10_000.0,
        tie_word_embeddings: false,
        bos_token_id: None,
        eos_token_ids: &[151_329, 151_336, 151_338],
    },
    architecture,
};

fn architecture(keys: &Keys, sizes: &Sizes) -> Result<Architecture> {
    let activation = Activation::read(keys, "hidden_act", Activation::Silu)?;
    let bias = keys.boolean("attention_bias")?.unwrap_or(true);
    let rope = Rope { interleaved: true, ..sizes.partial_rope(keys, 0.5)? };
    Ok(sizes.decoder(vec![rope], |layer, _| {
        let attention = sizes.attention(layer, [bias, false]);
        Layer {
            mixer_norm: Some(sizes.norm(layer, "post_self_attn_layernorm")),
            output_norm: Some(sizes.norm(layer, "post_mlp_layernorm")),
            ..sizes.layer(layer, attention, sizes.fused_mlp(layer, activation))
        }
    }))
}

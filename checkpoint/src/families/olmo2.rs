//! OLMo 2 (`modeling_olmo2.py`): norms behind attention and MLP and none before, and of all queries and of
//! all keys of a row.

use super::{Defaults, Family, Sizes};
use crate::Result;
use crate::architecture::{Activation, Architecture, Attention, FeedForward, Layer, Module};
use crate::keys::Keys;

pub(super) static FAMILY: Family = Family {
    model_type: "olmo2",
    class: "Olmo2ForCausalLM",
    // `configuration_olmo2.py` in transformers 5.
    defaults: Defaults {
        vocab_size: 50_304,
        hidden_size: 4096,
        intermediate_size: 11_008,
        num_hidden_layers: 32,
        num_attention_heads: 32,
        num_key_value_heads: None,
        head_dim: None,
        max_position_embeddings: 2048,
        rms_norm_eps: 1e-5,
        rope_theta: 10_000.0,
        tie_word_embeddings: false,
        bos_token_id: None,
        eos_token_ids: &[50_279],
    },
    architecture,
};

fn architecture(keys: &Keys, sizes: &Sizes) -> Result<Architecture> {
    let activation = Activation::read(keys, "hidden_act", Activation::Silu)?;
    let bias = keys.boolean("attention_bias")?.unwrap_or(false);
    Ok(sizes.decoder(vec![sizes.rope(keys)?], |layer, _| {
        let qk_norm = Some(sizes.joint_qk_norm(layer));
        let attention = Attention { qk_norm, ..sizes.attention(layer, [bias; 2]) };
        behind(sizes, layer, attention, sizes.mlp(layer, false, activation))
    }))
}

/// A layer of norms behind attention and behind the MLP.
pub(super) fn behind(
    sizes: &Sizes,
    layer: &Module,
    attention: Attention,
    mlp: FeedForward,
) -> Layer {
    Layer {
        input_norm: None,
        mixer_norm: Some(sizes.norm(layer, "post_attention_layernorm")),
        mlp_norm: None,
        output_norm: Some(sizes.norm(layer, "post_feedforward_layernorm")),
        ..sizes.layer(layer, attention, mlp)
    }
}

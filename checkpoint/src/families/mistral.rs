//! Mistral 7B and what is like it (`modeling_mistral.py`): every layer has the same window.

use super::window::layer_types;
use super::{Defaults, Family, Sizes};
use crate::Result;
use crate::architecture::{Activation, Architecture, Attention};
use crate::keys::Keys;

pub(super) static FAMILY: Family = Family {
    model_type: "mistral",
    class: "MistralForCausalLM",
    // `configuration_mistral.py` in transformers 5.
    defaults: Defaults {
        vocab_size: 32_000,
        hidden_size: 4096,
        intermediate_size: 14_336,
        num_hidden_layers: 32,
        num_attention_heads: 32,
        num_key_value_heads: Some(8),
        head_dim: None,
        max_position_embeddings: 4096 * 32,
        rms_norm_eps: 1e-6,
        rope_theta: 10_000.0,
        tie_word_embeddings: false,
        bos_token_id: Some(1),
        eos_token_ids: &[2],
    },
    architecture,
};

fn architecture(keys: &Keys, sizes: &Sizes) -> Result<Architecture> {
    let activation = Activation::read(keys, "hidden_act", Activation::Silu)?;
    let window = window(keys, sizes)?;
    Ok(sizes.decoder(vec![sizes.rope(keys)?], |layer, _| {
        let attention = Attention { window, ..sizes.attention(layer, [false; 2]) };
        sizes.layer(layer, attention, sizes.mlp(layer, false, activation))
    }))
}

/// The window of all layers.
fn window(keys: &Keys, sizes: &Sizes) -> Result<Option<usize>> {
    let window = match keys.size("sliding_window", usize::MAX)? {
        // An explicit null is none.
        None if keys.map.contains_key("sliding_window") => None,
        window => Some(window.unwrap_or(4096)),
    };
    // transformers ignores the key for this family, so a mixture has no reference.
    let types = layer_types(keys, sizes.layers, window)?.unwrap_or_default();
    if types.iter().any(|of_layer| *of_layer != window) {
        return Err(keys.refuse(
            "layer_types",
            "Mistral's layers are all alike; it must agree with `sliding_window`",
        ));
    }
    Ok(sizes.window(window))
}

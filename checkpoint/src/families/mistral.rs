//! Mistral 7B and what is like it (`modeling_mistral.py`): every layer has the same window, where `layer_types`
//! says nothing else.

use super::window::layer_types;
use super::{Defaults, Family, Sizes};
use crate::Result;
use crate::architecture::{Activation, Architecture, Attention};
use crate::keys::Keys;
use crate::rope::Rope;

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

pub(super) fn architecture(keys: &Keys, sizes: &Sizes) -> Result<Architecture> {
    decoder(keys, sizes, Some(4096), vec![sizes.rope(keys)?], [0; 2])
}

/// A model whose layers have windows as the keys say, else of `window`; `rotated` by some of `ropes`.
pub(super) fn decoder(
    keys: &Keys,
    sizes: &Sizes,
    window: Option<usize>,
    ropes: Vec<Rope>,
    rotated: [usize; 2],
) -> Result<Architecture> {
    let activation = Activation::read(keys, "hidden_act", Activation::Silu)?;
    let window = match keys.size("sliding_window", usize::MAX)? {
        // An explicit null is none.
        None if keys.map.contains_key("sliding_window") => None,
        said => said.or(window),
    };
    // transformers takes a Mistral that has the key for a Ministral.
    let windows = layer_types(keys, sizes.layers, window)?;
    let windows = windows.unwrap_or_else(|| vec![window; sizes.layers]);
    Ok(sizes.decoder(ropes, |layer, index| {
        let attention = Attention {
            window: sizes.window(windows[index]),
            ropes: Some(rotated),
            ..sizes.attention(layer, [false; 2])
        };
        sizes.layer(layer, attention, sizes.mlp(layer, false, activation))
    }))
}

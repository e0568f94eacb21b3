//! Qwen2 and Qwen2.5 (`modeling_qwen2.py`): biases of queries, keys and values.

use super::window::last_layers;
use super::{Defaults, Family, Sizes};
use crate::Result;
use crate::architecture::{Activation, Architecture, Attention};
use crate::keys::Keys;

pub(super) static FAMILY: Family = Family {
    model_type: "qwen2",
    class: "Qwen2ForCausalLM",
    // `configuration_qwen2.py` in transformers 5.
    defaults: Defaults {
        vocab_size: 151_936,
        hidden_size: 4096,
        intermediate_size: 22_016,
        num_hidden_layers: 32,
        num_attention_heads: 32,
        num_key_value_heads: Some(32),
        head_dim: None,
        max_position_embeddings: 32_768,
        rms_norm_eps: 1e-6,
        rope_theta: 10_000.0,
        tie_word_embeddings: false,
        bos_token_id: None,
        eos_token_ids: &[],
    },
    architecture,
};

fn architecture(keys: &Keys, sizes: &Sizes) -> Result<Architecture> {
    let activation = Activation::read(keys, "hidden_act", Activation::Silu)?;
    let windows = windows(keys, sizes)?;
    Ok(sizes.decoder(vec![sizes.rope(keys)?], |layer, index| {
        let window = windows[index];
        let attention = Attention { window, ..sizes.attention(layer, [true, false]) };
        sizes.layer(layer, attention, sizes.mlp(layer, false, activation))
    }))
}

/// The window of each layer: with `use_sliding_window` those from `max_window_layers` on have one, or
/// those that `layer_types` says.
pub(super) fn windows(keys: &Keys, sizes: &Sizes) -> Result<Vec<Option<usize>>> {
    let enabled = keys.boolean("use_sliding_window")?.unwrap_or(false);
    last_layers(keys, sizes, enabled, 28)
}

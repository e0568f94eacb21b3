//! SmolLM3 (`modeling_smollm3.py`): every fourth layer does not rotate.

use super::window::layer_types;
use super::{Defaults, Family, Sizes, limit};
use crate::Result;
use crate::architecture::{Activation, Architecture, Attention};
use crate::keys::Keys;

pub(super) static FAMILY: Family = Family {
    model_type: "smollm3",
    class: "SmolLM3ForCausalLM",
    // `configuration_smollm3.py` in transformers 5.
    defaults: Defaults {
        vocab_size: 128_256,
        hidden_size: 2048,
        intermediate_size: 11_008,
        num_hidden_layers: 36,
        num_attention_heads: 16,
        num_key_value_heads: Some(4),
        head_dim: None,
        max_position_embeddings: 32_768,
        rms_norm_eps: 1e-6,
        rope_theta: 2_000_000.0,
        tie_word_embeddings: true,
        bos_token_id: Some(128_000),
        eos_token_ids: &[128_001],
    },
    architecture,
};

fn architecture(keys: &Keys, sizes: &Sizes) -> Result<Architecture> {
    let activation = Activation::read(keys, "hidden_act", Activation::Silu)?;
    let attention_bias = keys.boolean("attention_bias")?.unwrap_or(false);
    let mlp_bias = keys.boolean("mlp_bias")?.unwrap_or(false);
    let interval = keys.size("no_rope_layer_interval", limit::LAYERS)?.unwrap_or(4);
    let rotates = match keys.flags("no_rope_layers")? {
        Some(flags) if flags.len() < sizes.layers => {
            return Err(keys.error(format!(
                "`no_rope_layers` has {} entries for {} layers (`num_hidden_layers`)",
                flags.len(),
                sizes.layers
            )));
        }
        Some(flags) => flags,
        None => (0..sizes.layers).map(|layer| !(layer + 1).is_multiple_of(interval)).collect(),
    };
    let enabled = keys.boolean("use_sliding_window")?.unwrap_or(false);
    let window = keys.size("sliding_window", usize::MAX)?.filter(|_| enabled);
    // Without windows the types of layers say nothing.
    let windows = match enabled {
        true => layer_types(keys, sizes.layers, window)?,
        false => None,
    };
    let windows = windows.unwrap_or_else(|| {
        (0..sizes.layers).map(|layer| window.filter(|_| !rotates[layer])).collect()
    });
    Ok(sizes.decoder(vec![sizes.rope(keys)?], |layer, index| {
        let attention = Attention {
            ropes: rotates[index].then_some([0; 2]),
            window: sizes.window(windows[index]),
            ..sizes.attention(layer, [attention_bias; 2])
        };
        sizes.layer(layer, attention, sizes.mlp(layer, mlp_bias, activation))
    }))
}

//! EXAONE 4 (`modeling_exaone4.py`): norms behind attention and MLP as OLMo 2, those of queries and keys as
//! Qwen3; where some layers have a window, the others do not rotate.

use super::olmo2::behind;
use super::window::alternating;
use super::{Defaults, Family, Sizes, limit};
use crate::Result;
use crate::architecture::{Activation, Architecture, Attention};
use crate::keys::Keys;

pub(super) static FAMILY: Family = Family {
    model_type: "exaone4",
    class: "Exaone4ForCausalLM",
    // `configuration_exaone4.py` in transformers 5.
    defaults: Defaults {
        vocab_size: 102_400,
        hidden_size: 4096,
        intermediate_size: 16_384,
        num_hidden_layers: 32,
        num_attention_heads: 32,
        num_key_value_heads: Some(32),
        head_dim: None,
        max_position_embeddings: 2048,
        rms_norm_eps: 1e-5,
        rope_theta: 10_000.0,
        tie_word_embeddings: false,
        bos_token_id: Some(0),
        eos_token_ids: &[2],
    },
    architecture,
};

fn architecture(keys: &Keys, sizes: &Sizes) -> Result<Architecture> {
    let activation = Activation::read(keys, "hidden_act", Activation::Silu)?;
    // An explicit null is none.
    let windows =
        keys.value("sliding_window").is_some() || !keys.map.contains_key("sliding_window");
    // A pattern in letters comes with the types that it means.
    let pattern = match keys.strings("layer_types")? {
        None if windows => keys.size("sliding_window_pattern", limit::LAYERS)?.unwrap_or(4),
        _ => 1,
    };
    let (sliding, window) =
        alternating(keys, sizes, 4096, |layer| !(layer + 1).is_multiple_of(pattern))?;
    Ok(sizes.decoder(vec![sizes.rope(keys)?], |layer, index| {
        let attention = Attention {
            qk_norm: Some(sizes.qk_norm(layer)),
            ropes: (!windows || sliding[index]).then_some([0; 2]),
            window: window.filter(|_| sliding[index]),
            ..sizes.attention(layer, [false; 2])
        };
        behind(sizes, layer, attention, sizes.mlp(layer, false, activation))
    }))
}

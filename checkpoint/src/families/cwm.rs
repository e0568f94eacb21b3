//! Code World Model (`modeling_cwm.py`): as Llama, with a window in three of four layers.

use super::window::alternating;
use super::{Defaults, Family, Sizes};
use crate::Result;
use crate::architecture::{Activation, Architecture, Attention};
use crate::keys::Keys;
use crate::rope::RopeScaling;

pub(super) static FAMILY: Family = Family {
    model_type: "cwm",
    class: "CwmForCausalLM",
    // `configuration_cwm.py` in transformers 5.
    defaults: Defaults {
        vocab_size: 128_256,
        hidden_size: 6144,
        intermediate_size: 21_504,
        num_hidden_layers: 64,
        num_attention_heads: 48,
        num_key_value_heads: Some(8),
        head_dim: Some(128),
        max_position_embeddings: 131_072,
        rms_norm_eps: 1e-5,
        rope_theta: 1_000_000.0,
        tie_word_embeddings: false,
        bos_token_id: Some(128_000),
        eos_token_ids: &[128_001, 128_008, 128_009],
    },
    architecture,
};

fn architecture(keys: &Keys, sizes: &Sizes) -> Result<Architecture> {
    let activation = Activation::read(keys, "hidden_act", Activation::Silu)?;
    let bias = keys.boolean("mlp_bias")?.unwrap_or(false);
    let (sliding, window) = alternating(keys, sizes, 8192, |layer| !layer.is_multiple_of(4))?;
    let mut rope = sizes.rope(keys)?;
    if ["rope_parameters", "rope_scaling"].iter().all(|key| keys.value(key).is_none()) {
        rope.scaling = RopeScaling::Llama3 {
            factor: 16.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_position_embeddings: 8192,
        };
    }
    Ok(sizes.decoder(vec![rope], |layer, index| {
        let window = window.filter(|_| sliding[index]);
        let attention = Attention { window, ..sizes.attention(layer, [false; 2]) };
        sizes.layer(layer, attention, sizes.mlp(layer, bias, activation))
    }))
}

//! Phi-3, 3.5 and 4 (`modeling_phi3.py`): one projection to queries, keys and values and one to gate and up,
//! of heads that may be rotated in part.

use serde_json::json;

use super::{Defaults, Family, Sizes};
use crate::Result;
use crate::architecture::{Activation, Architecture, Attention};
use crate::keys::Keys;
use crate::rope::Rope;

pub(super) static FAMILY: Family = Family {
    model_type: "phi3",
    class: "Phi3ForCausalLM",
    // `configuration_phi3.py` in transformers 5.
    defaults: Defaults {
        vocab_size: 32_064,
        hidden_size: 3072,
        intermediate_size: 8192,
        num_hidden_layers: 32,
        num_attention_heads: 32,
        num_key_value_heads: None,
        head_dim: None,
        max_position_embeddings: 4096,
        rms_norm_eps: 1e-5,
        rope_theta: 10_000.0,
        tie_word_embeddings: false,
        bos_token_id: Some(1),
        eos_token_ids: &[32_000],
    },
    architecture,
};

fn architecture(keys: &Keys, sizes: &Sizes) -> Result<Architecture> {
    let activation = Activation::read(keys, "hidden_act", Activation::Silu)?;
    let window = sizes.window(keys.size("sliding_window", usize::MAX)?);
    let rope = rope(keys, sizes)?;
    let width = sizes.query_width() + 2 * sizes.kv_width();
    Ok(sizes.decoder(vec![rope], |layer, _| {
        let fused = layer.at("self_attn").linear("qkv_proj", [width, sizes.hidden_size], false);
        let attention =
            Attention { qkv: vec![fused], window, ..sizes.attention(layer, [false; 2]) };
        sizes.layer(layer, attention, sizes.fused_mlp(layer, activation))
    }))
}

/// `Phi3Config` takes "yarn" for an older name of "longrope", which two lists of divisors belong to, and
/// 4096 for the original context where nothing says it.
fn rope(keys: &Keys, sizes: &Sizes) -> Result<Rope> {
    let mut map = keys.map.clone();
    for object in ["rope_scaling", "rope_parameters"] {
        let Some(scaling) = map.get_mut(object).and_then(|it| it.as_object_mut()) else { continue };
        if !["short_factor", "long_factor"].iter().all(|key| scaling.contains_key(*key)) {
            continue;
        }
        for key in ["rope_type", "type"] {
            if scaling.get(key).is_some_and(|it| it == "yarn") {
                scaling.insert(key.into(), json!("longrope"));
            }
        }
        let original = "original_max_position_embeddings";
        if scaling.get(original).is_none_or(|it| it.is_null()) {
            scaling.insert(original.into(), json!(4096));
        }
    }
    sizes.partial_rope(&Keys { map: &map, ..*keys }, 1.0)
}

//! GLM-4.5, 4.6 and their Air (`modeling_glm4_moe.py`): experts in all layers but the first ones, chosen by a sigmoid
//! of each and a bias, beside one of all rows; half of each head rotates.

use super::experts::{DeepSeekDefaults, DeepSeekExperts, Routing};
use super::{Defaults, Family, Sizes};
use crate::Result;
use crate::architecture::{Architecture, Attention};
use crate::keys::Keys;

pub(super) static FAMILY: Family = Family {
    model_type: "glm4_moe",
    class: "Glm4MoeForCausalLM",
    // `configuration_glm4_moe.py` in transformers 5.
    defaults: Defaults {
        vocab_size: 151_552,
        hidden_size: 4096,
        intermediate_size: 10_944,
        num_hidden_layers: 46,
        num_attention_heads: 96,
        num_key_value_heads: Some(8),
        head_dim: None,
        max_position_embeddings: 131_072,
        rms_norm_eps: 1e-5,
        rope_theta: 10_000.0,
        tie_word_embeddings: false,
        bos_token_id: None,
        eos_token_ids: &[],
    },
    architecture,
};

fn architecture(keys: &Keys, sizes: &Sizes) -> Result<Architecture> {
    let bias = keys.boolean("attention_bias")?.unwrap_or(false);
    let normed = keys.boolean("use_qk_norm")?.unwrap_or(false);
    let routing = Routing { experts: 128, top_k: 8, normalised: true, width: 1408, bias: false };
    let defaults = DeepSeekDefaults {
        routing,
        sigmoids: true,
        groups: Some([1; 2]),
        scale: 1.0,
        shared: 1,
        dense: 1,
    };
    let experts = DeepSeekExperts::read(keys, sizes, defaults)?;
    Ok(sizes.decoder(vec![sizes.partial_rope(keys, 0.5)?], |layer, index| {
        let qk_norm = normed.then(|| sizes.qk_norm(layer));
        let attention = Attention { qk_norm, ..sizes.attention(layer, [bias, false]) };
        sizes.layer(layer, attention, experts.layer(sizes, layer, index))
    }))
}

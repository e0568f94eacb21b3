//! Mellum 2 (`modeling_mellum.py`): Qwen3-MoE, with windows in some layers, which rotate by a base of their own.

use super::experts::{QwenExperts, Routing};
use super::window::alternating;
use super::{Defaults, Family, Sizes};
use crate::Result;
use crate::architecture::{Architecture, Attention};
use crate::keys::Keys;

pub(super) static FAMILY: Family = Family {
    model_type: "mellum",
    class: "MellumForCausalLM",
    // `configuration_mellum.py` in transformers 5.
    defaults: Defaults {
        vocab_size: 98_304,
        hidden_size: 2304,
        intermediate_size: 7168,
        num_hidden_layers: 28,
        num_attention_heads: 32,
        num_key_value_heads: Some(4),
        head_dim: Some(128),
        max_position_embeddings: 131_072,
        rms_norm_eps: 1e-6,
        rope_theta: 500_000.0,
        tie_word_embeddings: false,
        bos_token_id: None,
        eos_token_ids: &[],
    },
    architecture,
};

fn architecture(keys: &Keys, sizes: &Sizes) -> Result<Architecture> {
    let defaults = Routing { experts: 64, top_k: 8, normalised: true, width: 896, bias: false };
    let experts = QwenExperts::read(keys, sizes, defaults, None)?;
    let experts = experts.in_all_layers().by_layer_types(keys)?;
    let bias = keys.boolean("attention_bias")?.unwrap_or(false);
    let (sliding, window) = alternating(keys, sizes, 1024, |_| false)?;
    let ropes = sizes.ropes_by_window(keys, "rope_local_base_freq", 10_000.0)?;
    Ok(sizes.decoder(ropes, |layer, index| {
        let attention = Attention {
            qk_norm: Some(sizes.qk_norm(layer)),
            ropes: Some([usize::from(sliding[index]); 2]),
            window: window.filter(|_| sliding[index]),
            ..sizes.attention(layer, [bias; 2])
        };
        sizes.layer(layer, attention, experts.layer(sizes, layer, index))
    }))
}

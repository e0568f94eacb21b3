//! dots.llm1 (`modeling_dots1.py`): Qwen3's attention, and DeepSeek-V3's experts.

use super::experts::{DeepSeekDefaults, DeepSeekExperts, Routing};
use super::window::last_layers;
use super::{Defaults, Family, Sizes};
use crate::Result;
use crate::architecture::{Architecture, Attention};
use crate::keys::Keys;

pub(super) static FAMILY: Family = Family {
    model_type: "dots1",
    class: "Dots1ForCausalLM",
    // `configuration_dots1.py` in transformers 5.
    defaults: Defaults {
        vocab_size: 152_064,
        hidden_size: 4608,
        intermediate_size: 10_944,
        num_hidden_layers: 62,
        num_attention_heads: 32,
        num_key_value_heads: Some(32),
        head_dim: None,
        max_position_embeddings: 2048,
        rms_norm_eps: 1e-6,
        rope_theta: 10_000.0,
        tie_word_embeddings: false,
        bos_token_id: None,
        eos_token_ids: &[],
    },
    architecture,
};

fn architecture(keys: &Keys, sizes: &Sizes) -> Result<Architecture> {
    let bias = keys.boolean("attention_bias")?.unwrap_or(false);
    // How many experts there are transformers says of none; dots.llm1 itself does.
    let routing = Routing { experts: 128, top_k: 6, normalised: false, width: 1408, bias: false };
    let defaults = DeepSeekDefaults {
        routing,
        sigmoids: true,
        groups: Some([1; 2]),
        scale: 1.0,
        shared: 2,
        dense: 0,
    };
    let experts = DeepSeekExperts::read(keys, sizes, defaults)?;
    let windows = last_layers(keys, sizes, true, 62)?;
    Ok(sizes.decoder(vec![sizes.rope(keys)?], |layer, index| {
        let qk_norm = Some(sizes.qk_norm(layer));
        let window = windows[index];
        let attention = Attention { qk_norm, window, ..sizes.attention(layer, [bias; 2]) };
        sizes.layer(layer, attention, experts.layer(sizes, layer, index))
    }))
}

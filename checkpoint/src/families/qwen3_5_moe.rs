//! Qwen3.5's text model with experts (`modeling_qwen3_5_moe.py`), in every layer, one of which is for all rows.

use super::experts::{QwenExperts, Routing, no_windows};
use super::{Defaults, Family, Sizes, qwen3_5};
use crate::Result;
use crate::architecture::Architecture;
use crate::keys::Keys;

pub(super) static FAMILY: Family = Family {
    model_type: "qwen3_5_moe_text",
    class: "Qwen3_5MoeForCausalLM",
    // `configuration_qwen3_5_moe.py` in transformers 5; nothing has the width of an MLP.
    defaults: Defaults {
        vocab_size: 248_320,
        hidden_size: 2048,
        intermediate_size: 512,
        num_hidden_layers: 40,
        num_attention_heads: 16,
        num_key_value_heads: Some(2),
        head_dim: Some(256),
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
    if keys.boolean("norm_topk_prob")? == Some(false) {
        return Err(keys.refuse("norm_topk_prob", "supported is true"));
    }
    let defaults = Routing { experts: 256, top_k: 8, normalised: true, width: 512, bias: false };
    no_windows(keys)?;
    let experts = QwenExperts::read(keys, sizes, defaults, Some(512))?.in_all_layers();
    qwen3_5::with_mlps(keys, sizes, |layer, index| experts.layer(sizes, layer, index))
}

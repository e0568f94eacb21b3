//! Qwen3-Next (`modeling_qwen3_next.py`): Qwen3.5's layers with experts, one of which is for all rows. Files have what
//! linear attention reads [key head by key head](crate::key_heads).

use super::experts::{QwenExperts, Routing, no_windows};
use super::{Defaults, Family, Sizes, qwen3_5};
use crate::Result;
use crate::architecture::Architecture;
use crate::keys::Keys;

pub(super) static FAMILY: Family = Family {
    model_type: "qwen3_next",
    class: "Qwen3NextForCausalLM",
    // `configuration_qwen3_next.py` in transformers 5.
    defaults: Defaults {
        vocab_size: 151_936,
        hidden_size: 2048,
        intermediate_size: 5632,
        num_hidden_layers: 48,
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
    let defaults = Routing { experts: 512, top_k: 10, normalised: true, width: 512, bias: false };
    no_windows(keys)?;
    let experts = QwenExperts::read(keys, sizes, defaults, Some(512))?;
    qwen3_5::with_mlps(keys, sizes, |layer, index| experts.layer(sizes, layer, index))
}

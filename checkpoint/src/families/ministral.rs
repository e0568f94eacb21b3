//! Ministral 8B of 2024 (`modeling_ministral.py`): as Mistral; which layers have a window is said.

use super::mistral::architecture;
use super::{Defaults, Family};

pub(super) static FAMILY: Family = Family {
    model_type: "ministral",
    class: "MinistralForCausalLM",
    // `configuration_ministral.py` in transformers 5.
    defaults: Defaults {
        vocab_size: 32_000,
        hidden_size: 4096,
        intermediate_size: 14_336,
        num_hidden_layers: 32,
        num_attention_heads: 32,
        num_key_value_heads: Some(8),
        head_dim: None,
        max_position_embeddings: 4096 * 32,
        rms_norm_eps: 1e-6,
        rope_theta: 10_000.0,
        tie_word_embeddings: false,
        bos_token_id: Some(1),
        eos_token_ids: &[2],
    },
    architecture,
};

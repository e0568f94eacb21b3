//! EuroBERT (`modeling_eurobert.py`): Llama that sees both ways.

use super::{Defaults, Family, llama};

pub(super) static FAMILY: Family = Family {
    model_type: "eurobert",
    class: "EuroBertModel",
    // `configuration_eurobert.py` in transformers 5.
    defaults: Defaults {
        vocab_size: 128_256,
        hidden_size: 768,
        intermediate_size: 3072,
        num_hidden_layers: 12,
        num_attention_heads: 12,
        max_position_embeddings: 8192,
        rms_norm_eps: 1e-5,
        bos_token_id: Some(128_000),
        eos_token_ids: &[128_001],
        ..llama::FAMILY.defaults
    },
    architecture: |keys, sizes| {
        (llama::FAMILY.architecture)(keys, sizes)
            .map(crate::architecture::Architecture::into_encoder)
    },
};

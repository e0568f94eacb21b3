//! The text model of Gemma 4 where one model has images and sound too (`modeling_gemma4_unified.py`): Gemma 4's, with
//! defaults of its own.

use super::{Defaults, Family, gemma4};

pub(super) static FAMILY: Family = Family {
    model_type: "gemma4_unified_text",
    class: "Gemma4UnifiedForCausalLM",
    // `configuration_gemma4_unified.py` in transformers 5.
    defaults: Defaults { max_position_embeddings: 262_144, ..gemma4::DEFAULTS },
    architecture: |keys, sizes| gemma4::architecture(keys, sizes, 1024, 0),
};

//! Ministral 8B of 2024 (`modeling_ministral.py`): as Mistral; which layers have a window is said.

use super::{Family, mistral};

pub(super) static FAMILY: Family = Family {
    model_type: "ministral",
    class: "MinistralForCausalLM",
    // `configuration_ministral.py` in transformers 5 has Mistral's.
    defaults: mistral::FAMILY.defaults,
    architecture: mistral::architecture,
};

//! Granite with experts, one of which is for all rows (`modeling_granitemoeshared.py`).

use super::granitemoe::decoder;
use super::{Family, limit};

pub(super) static FAMILY: Family = Family {
    model_type: "granitemoeshared",
    class: "GraniteMoeSharedForCausalLM",
    // `configuration_granitemoeshared.py` in transformers 5.
    defaults: super::granite::FAMILY.defaults,
    architecture: |keys, sizes| {
        let wide = keys.count("shared_intermediate_size", limit::WIDTH)?.unwrap_or(0);
        decoder(keys, sizes, (wide > 0).then_some(wide))
    },
};

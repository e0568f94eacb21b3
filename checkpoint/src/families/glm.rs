//! GLM-4-9B and GLM-Edge (`modeling_glm.py`): one projection to gate and up, half of each head rotated, in pairs of neighbours.

use super::{Family, Sizes, glm4};
use crate::Result;
use crate::architecture::{Activation, Architecture};
use crate::keys::Keys;
use crate::rope::Rope;

pub(super) static FAMILY: Family = Family {
    model_type: "glm",
    class: "GlmForCausalLM",
    // `configuration_glm.py` in transformers 5.
    defaults: glm4::FAMILY.defaults,
    architecture,
};

fn architecture(keys: &Keys, sizes: &Sizes) -> Result<Architecture> {
    let activation = Activation::read(keys, "hidden_act", Activation::Silu)?;
    let bias = keys.boolean("attention_bias")?.unwrap_or(true);
    let rope = Rope { interleaved: true, ..sizes.partial_rope(keys, 0.5)? };
    Ok(sizes.decoder(vec![rope], |layer, _| {
        let mlp = sizes.fused_mlp(layer, activation);
        sizes.layer(layer, sizes.attention(layer, [bias, false]), mlp)
    }))
}

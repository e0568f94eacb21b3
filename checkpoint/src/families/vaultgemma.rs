//! VaultGemma (`modeling_vaultgemma.py`): as Gemma 2, without norms behind attention and MLP.

use super::{Family, Sizes, gemma2};
use crate::Result;
use crate::architecture::Architecture;
use crate::keys::Keys;

pub(super) static FAMILY: Family = Family {
    model_type: "vaultgemma",
    class: "VaultGemmaForCausalLM",
    // `configuration_vaultgemma.py` in transformers 5.
    defaults: gemma2::FAMILY.defaults,
    architecture,
};

fn architecture(keys: &Keys, sizes: &Sizes) -> Result<Architecture> {
    let mut model = (gemma2::FAMILY.architecture)(keys, sizes)?;
    for layer in &mut model.layers {
        (layer.mixer_norm, layer.output_norm) = (None, None);
    }
    Ok(model)
}

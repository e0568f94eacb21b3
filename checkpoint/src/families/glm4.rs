//! GLM-4-0414 (`modeling_glm4.py`): as GLM-4-9B, with norms on both sides of attention and MLP.

use super::{Defaults, Family, Sizes, glm};
use crate::Result;
use crate::architecture::{Architecture, Module};
use crate::keys::Keys;

pub(super) static FAMILY: Family = Family {
    model_type: "glm4",
    class: "Glm4ForCausalLM",
    // `configuration_glm4.py` in transformers 5.
    defaults: Defaults {
        vocab_size: 151_552,
        hidden_size: 4096,
        intermediate_size: 13_696,
        num_hidden_layers: 40,
        num_attention_heads: 32,
        num_key_value_heads: Some(2),
        head_dim: Some(128),
        max_position_embeddings: 131_072,
        rms_norm_eps: 0.000_000_156_25,
        rope_theta: 10_000.0,
        tie_word_embeddings: false,
        bos_token_id: None,
        eos_token_ids: &[151_329, 151_336, 151_338],
    },
    architecture,
};

fn architecture(keys: &Keys, sizes: &Sizes) -> Result<Architecture> {
    let mut model = (glm::FAMILY.architecture)(keys, sizes)?;
    let layers = Module::new("model").at("layers");
    for (index, layer) in model.layers.iter_mut().enumerate() {
        let norm = |name| Some(sizes.norm(&layers.at(index), name));
        layer.mixer_norm = norm("post_self_attn_layernorm");
        layer.output_norm = norm("post_mlp_layernorm");
    }
    Ok(model)
}

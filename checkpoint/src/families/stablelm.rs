//! StableLM 3B and StableLM 2 1.6B (`modeling_stablelm.py`): layer norms, and a quarter of each head rotates.

use super::{Defaults, Family, Sizes};
use crate::Result;
use crate::architecture::{Activation, Architecture, Layer};
use crate::keys::Keys;

pub(super) static FAMILY: Family = Family {
    model_type: "stablelm",
    class: "StableLmForCausalLM",
    // `configuration_stablelm.py` in transformers 5.
    defaults: Defaults {
        vocab_size: 50_304,
        hidden_size: 2560,
        intermediate_size: 6912,
        num_hidden_layers: 32,
        num_attention_heads: 32,
        num_key_value_heads: Some(32),
        head_dim: None,
        max_position_embeddings: 4096,
        rms_norm_eps: 1e-5,
        rope_theta: 10_000.0,
        tie_word_embeddings: false,
        bos_token_id: Some(0),
        eos_token_ids: &[0],
    },
    architecture,
};

fn architecture(keys: &Keys, sizes: &Sizes) -> Result<Architecture> {
    let activation = Activation::read(keys, "hidden_act", Activation::Silu)?;
    let bias = keys.boolean("use_qkv_bias")?.unwrap_or(false);
    let parallel = keys.boolean("use_parallel_residual")?.unwrap_or(false);
    if keys.boolean("qk_layernorm")?.unwrap_or(false) {
        // Each head's is a tensor of its own.
        return Err(keys.refuse("qk_layernorm", "supported is false: StableLM 2 12B is not"));
    }
    let epsilon = keys.positive("layer_norm_eps")?.unwrap_or(sizes.rms_norm_eps);
    let rope = sizes.partial_rope(keys, 0.25)?;
    Ok(sizes.layer_normed_decoder(vec![rope], epsilon, |layer, _| {
        let mlp = sizes.mlp(layer, false, activation);
        let layer = sizes.layer(layer, sizes.attention(layer, [bias, false]), mlp);
        let mlp_norm = layer.mlp_norm.filter(|_| !parallel);
        Layer { mlp_norm, parallel, ..layer }
    }))
}

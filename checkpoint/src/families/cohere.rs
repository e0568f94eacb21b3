//! Command R and Aya 23 (`modeling_cohere.py`): attention and MLP in parallel behind one layer norm, pairs of
//! neighbours rotate, and logits are scaled. Command R+ norms each head of queries and keys.

use super::{Defaults, Family, Sizes, limit};
use crate::Result;
use crate::architecture::{
    Activation, Architecture, Attention, Layer, Logits, Module, Norm, QkNorm,
};
use crate::keys::Keys;
use crate::rope::Rope;

pub(super) static FAMILY: Family = Family {
    model_type: "cohere",
    class: "CohereForCausalLM",
    // `configuration_cohere.py` in transformers 5.
    defaults: Defaults {
        vocab_size: 256_000,
        hidden_size: 8192,
        intermediate_size: 22_528,
        num_hidden_layers: 40,
        num_attention_heads: 64,
        num_key_value_heads: None,
        head_dim: None,
        max_position_embeddings: 8192,
        rms_norm_eps: 1e-5,
        rope_theta: 500_000.0,
        tie_word_embeddings: true,
        bos_token_id: Some(5),
        eos_token_ids: &[255_001],
    },
    architecture,
};

fn architecture(keys: &Keys, sizes: &Sizes) -> Result<Architecture> {
    let normed = keys.boolean("use_qk_norm")?.unwrap_or(false);
    // Command R of March 2024 says there what it was trained for, and has a sixteenth of it under the usual key.
    // A number that no model has, as tokenizers write for none, says nothing.
    let trained = keys.size("model_max_length", limit::POSITIONS).ok().flatten();
    let max_position_embeddings = trained.unwrap_or(sizes.max_position_embeddings);
    let sizes = Sizes { max_position_embeddings, ..sizes.clone() };
    let epsilon = epsilon(keys)?;
    decoder(keys, &sizes, |layer, attention, _| {
        let module = layer.at("self_attn");
        let norm = |name, heads| {
            let norm = module.head_norm(name, heads, sizes.head_dim, epsilon);
            Norm { centred: true, ..norm }
        };
        let (query, key) = (norm("q_norm", sizes.heads), Some(norm("k_norm", sizes.kv_heads)));
        let qk_norm = normed.then_some(QkNorm { query, key, rotated: false });
        Attention { qk_norm, ..attention }
    })
}

/// Of all norms.
fn epsilon(keys: &Keys) -> Result<f64> {
    Ok(keys.positive("layer_norm_eps")?.unwrap_or(FAMILY.defaults.rms_norm_eps))
}

/// A model whose layers attend as `attention` makes of their modules, of what all have in common and of their
/// numbers.
pub(super) fn decoder(
    keys: &Keys,
    sizes: &Sizes,
    attention: impl Fn(&Module, Attention, usize) -> Attention,
) -> Result<Architecture> {
    let activation = Activation::read(keys, "hidden_act", Activation::Silu)?;
    let bias = keys.boolean("attention_bias")?.unwrap_or(false);
    let scale = keys.positive("logit_scale")?.unwrap_or(0.0625) as f32;
    let epsilon = epsilon(keys)?;
    let norm = |module: &Module, name| {
        let norm = module.norm(name, sizes.hidden_size, epsilon);
        Norm { centred: true, ..norm }
    };
    let rope = Rope { interleaved: true, ..sizes.rope(keys)? };
    let model = sizes.decoder(vec![rope], |layer, index| {
        let attention = attention(layer, sizes.attention(layer, [bias; 2]), index);
        Layer {
            input_norm: Some(norm(layer, "input_layernorm")),
            mlp_norm: None,
            parallel: true,
            ..sizes.layer(layer, attention, sizes.mlp(layer, false, activation))
        }
    });
    let logits = Logits { scale, cap: None };
    Ok(Architecture { norm: norm(&Module::new("model"), "norm"), logits, ..model })
}

//! Mistral 7B and what is like it (`modeling_mistral.py`): every layer has the same window.

use super::window::layer_types;
use super::{Defaults, Family, Sizes};
use crate::Result;
use crate::architecture::{Activation, Architecture, Attention, Layer, Mlp, Module};
use crate::keys::Keys;

pub(super) static FAMILY: Family = Family {
    model_type: "mistral",
    class: "MistralForCausalLM",
    // `configuration_mistral.py` in transformers 5.
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
        eos_token_id: Some(2),
    },
    architecture,
};

fn architecture(keys: &Keys, sizes: &Sizes) -> Result<Architecture> {
    let &Sizes { vocab_size, hidden_size, intermediate_size, heads, kv_heads, head_dim, .. } =
        sizes;
    let (query_width, kv_width) = (heads * head_dim, kv_heads * head_dim);
    let epsilon = sizes.rms_norm_eps;
    let activation = Activation::read(keys)?;
    let window = window(keys, sizes)?;

    let model = Module::new("model");
    let layer = |index| {
        let layer = model.at("layers").at(index);
        let (attention, mlp) = (layer.at("self_attn"), layer.at("mlp"));
        Layer {
            input_norm: layer.norm("input_layernorm", hidden_size, epsilon),
            attention: Attention {
                query: attention.linear("q_proj", [query_width, hidden_size], false),
                key: attention.linear("k_proj", [kv_width, hidden_size], false),
                value: attention.linear("v_proj", [kv_width, hidden_size], false),
                qk_norm: None,
                output: attention.linear("o_proj", [hidden_size, query_width], false),
                heads,
                kv_heads,
                head_dim,
                window,
            },
            mlp_norm: layer.norm("post_attention_layernorm", hidden_size, epsilon),
            mlp: Mlp {
                gate: mlp.linear("gate_proj", [intermediate_size, hidden_size], false),
                up: mlp.linear("up_proj", [intermediate_size, hidden_size], false),
                down: mlp.linear("down_proj", [hidden_size, intermediate_size], false),
                activation,
            },
        }
    };
    Ok(Architecture {
        embedding: model.at("embed_tokens").embedding(vocab_size, hidden_size),
        layers: (0..sizes.layers).map(layer).collect(),
        norm: model.norm("norm", hidden_size, epsilon),
        output: Module::new("lm_head").output(vocab_size, hidden_size),
    })
}

/// The window of all layers.
fn window(keys: &Keys, sizes: &Sizes) -> Result<Option<usize>> {
    let window = match keys.size("sliding_window", usize::MAX)? {
        // An explicit null is none.
        None if keys.map.contains_key("sliding_window") => None,
        window => Some(window.unwrap_or(4096)),
    };
    // transformers ignores the key for this family, so a mixture has no reference.
    let types = layer_types(keys, sizes.layers, window)?.unwrap_or_default();
    if types.iter().any(|of_layer| *of_layer != window) {
        return Err(keys.refuse(
            "layer_types",
            "Mistral's layers are all alike; it must agree with `sliding_window`",
        ));
    }
    Ok(sizes.window(window))
}

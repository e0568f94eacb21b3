//! Qwen3 (`modeling_qwen3.py`): queries and keys are normed, head by head.

use super::qwen2::windows;
use super::{Defaults, Family, Sizes};
use crate::Result;
use crate::architecture::{Activation, Architecture, Attention, Layer, Mlp, Module, QkNorm};
use crate::keys::Keys;

pub(super) static FAMILY: Family = Family {
    model_type: "qwen3",
    class: "Qwen3ForCausalLM",
    // `configuration_qwen3.py` in transformers 5.
    defaults: Defaults {
        vocab_size: 151_936,
        hidden_size: 4096,
        intermediate_size: 22_016,
        num_hidden_layers: 32,
        num_attention_heads: 32,
        num_key_value_heads: Some(32),
        head_dim: Some(128),
        max_position_embeddings: 32_768,
        rms_norm_eps: 1e-6,
        rope_theta: 10_000.0,
        tie_word_embeddings: false,
        bos_token_id: None,
        eos_token_id: None,
    },
    architecture,
};

fn architecture(keys: &Keys, sizes: &Sizes) -> Result<Architecture> {
    let &Sizes { vocab_size, hidden_size, intermediate_size, heads, kv_heads, head_dim, .. } =
        sizes;
    let (query_width, kv_width) = (heads * head_dim, kv_heads * head_dim);
    let epsilon = sizes.rms_norm_eps;
    let activation = Activation::read(keys)?;
    let windows = windows(keys, sizes)?;
    let attention_bias = keys.boolean("attention_bias")?.unwrap_or(false);

    let model = Module::new("model");
    let layer = |(index, window)| {
        let layer = model.at("layers").at(index);
        let (attention, mlp) = (layer.at("self_attn"), layer.at("mlp"));
        Layer {
            input_norm: layer.norm("input_layernorm", hidden_size, epsilon),
            attention: Attention {
                query: attention.linear("q_proj", [query_width, hidden_size], attention_bias),
                key: attention.linear("k_proj", [kv_width, hidden_size], attention_bias),
                value: attention.linear("v_proj", [kv_width, hidden_size], attention_bias),
                qk_norm: Some(QkNorm {
                    query: attention.norm("q_norm", head_dim, epsilon),
                    key: attention.norm("k_norm", head_dim, epsilon),
                }),
                output: attention.linear("o_proj", [hidden_size, query_width], attention_bias),
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
        layers: windows.into_iter().enumerate().map(layer).collect(),
        norm: model.norm("norm", hidden_size, epsilon),
        output: Module::new("lm_head").output(vocab_size, hidden_size),
    })
}

//! Llama 2, 3 and 3.x (`modeling_llama.py`).

use super::{Defaults, Family, Sizes};
use crate::Result;
use crate::architecture::{Activation, Architecture, Attention, Layer, Mlp, Module};
use crate::keys::Keys;

pub(super) static FAMILY: Family = Family {
    model_type: "llama",
    class: "LlamaForCausalLM",
    // `configuration_llama.py` in transformers 5.
    defaults: Defaults {
        vocab_size: 32_000,
        hidden_size: 4096,
        intermediate_size: 11_008,
        num_hidden_layers: 32,
        num_attention_heads: 32,
        num_key_value_heads: None,
        head_dim: None,
        max_position_embeddings: 2048,
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
    let attention_bias = keys.boolean("attention_bias")?.unwrap_or(false);
    let mlp_bias = keys.boolean("mlp_bias")?.unwrap_or(false);

    let model = Module::new("model");
    let layer = |index| {
        let layer = model.at("layers").at(index);
        let (attention, mlp) = (layer.at("self_attn"), layer.at("mlp"));
        Layer {
            input_norm: layer.norm("input_layernorm", hidden_size, epsilon),
            attention: Attention {
                query: attention.linear("q_proj", [query_width, hidden_size], attention_bias),
                key: attention.linear("k_proj", [kv_width, hidden_size], attention_bias),
                value: attention.linear("v_proj", [kv_width, hidden_size], attention_bias),
                qk_norm: None,
                output: attention.linear("o_proj", [hidden_size, query_width], attention_bias),
                heads,
                kv_heads,
                head_dim,
                window: None,
            },
            mlp_norm: layer.norm("post_attention_layernorm", hidden_size, epsilon),
            mlp: Mlp {
                gate: mlp.linear("gate_proj", [intermediate_size, hidden_size], mlp_bias),
                up: mlp.linear("up_proj", [intermediate_size, hidden_size], mlp_bias),
                down: mlp.linear("down_proj", [hidden_size, intermediate_size], mlp_bias),
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

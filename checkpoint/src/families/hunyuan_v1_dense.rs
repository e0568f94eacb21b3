//! Hunyuan where it is dense (`modeling_hunyuan_v1_dense.py`): as Llama, with norms of queries and keys behind
//! their rotation, whose base may be stretched.

use super::{Defaults, Family, Sizes};
use crate::Result;
use crate::architecture::{Activation, Architecture, Attention, QkNorm};
use crate::keys::Keys;

pub(super) static FAMILY: Family = Family {
    model_type: "hunyuan_v1_dense",
    class: "HunYuanDenseV1ForCausalLM",
    // `configuration_hunyuan_v1_dense.py` in transformers 5.
    defaults: Defaults {
        vocab_size: 290_943,
        hidden_size: 4096,
        intermediate_size: 11_008,
        num_hidden_layers: 32,
        num_attention_heads: 32,
        num_key_value_heads: None,
        head_dim: None,
        max_position_embeddings: 2048,
        rms_norm_eps: 1e-5,
        rope_theta: 10_000.0,
        tie_word_embeddings: false,
        bos_token_id: Some(1),
        eos_token_ids: &[2],
    },
    architecture,
};

fn architecture(keys: &Keys, sizes: &Sizes) -> Result<Architecture> {
    let activation = Activation::read(keys, "hidden_act", Activation::Silu)?;
    let bias = keys.boolean("attention_bias")?.unwrap_or(false);
    Ok(sizes.decoder(vec![sizes.stretched_rope(keys)?], |layer, _| {
        let module = layer.at("self_attn");
        let norm = |name| module.norm(name, sizes.head_dim, sizes.rms_norm_eps);
        let (query, key) = (norm("query_layernorm"), Some(norm("key_layernorm")));
        let attention = Attention {
            qk_norm: Some(QkNorm { query, key, rotated: true }),
            ..sizes.attention(layer, [bias; 2])
        };
        sizes.layer(layer, attention, sizes.mlp(layer, false, activation))
    }))
}

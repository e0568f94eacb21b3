//! ModernBERT (`modeling_modernbert.py`): an encoder as decoders are today, with norms before what they are of, rotation, a gate,
//! and a window in two of three layers.

use serde_json::Value;

use super::window::sliding_layers;
use super::{Defaults, Family, Sizes, limit};
use crate::Result;
use crate::architecture::{
    Activation, Architecture, Attention, FeedForward, Layer, Mlp, Module, Norm,
};
use crate::keys::Keys;

pub(super) static FAMILY: Family = Family {
    model_type: "modernbert",
    class: "ModernBertModel",
    // `configuration_modernbert.py` in transformers 5.
    defaults: Defaults {
        vocab_size: 50_368,
        hidden_size: 768,
        intermediate_size: 1152,
        num_hidden_layers: 22,
        num_attention_heads: 12,
        num_key_value_heads: None,
        head_dim: None,
        max_position_embeddings: 8192,
        rms_norm_eps: 1e-5,
        rope_theta: 160_000.0,
        tie_word_embeddings: true,
        bos_token_id: Some(50_281),
        eos_token_ids: &[50_282],
    },
    architecture,
};

fn architecture(keys: &Keys, sizes: &Sizes) -> Result<Architecture> {
    let flag = |key| Ok::<_, crate::Error>(keys.boolean(key)?.unwrap_or(false));
    let [norm_bias, bias, mlp_bias] =
        [flag("norm_bias")?, flag("attention_bias")?, flag("mlp_bias")?];
    let plain = |(key, value): (&String, &Value)| key == "rope_type" && value == "default";
    if keys.object("rope_scaling")?.is_some_and(|it| !it.iter().all(plain)) {
        return Err(keys.refuse("rope_scaling", "supported is null"));
    }
    let activation = Activation::read(keys, "hidden_activation", Activation::Gelu)?;
    let epsilon = keys.positive("norm_eps")?.unwrap_or(FAMILY.defaults.rms_norm_eps);
    let global = keys.positive("global_rope_theta")?.unwrap_or(sizes.rope_theta);
    let sizes = &Sizes { rope_theta: global, ..sizes.clone() };
    let ropes = sizes.ropes_by_window(keys, "local_rope_theta", 10_000.0)?;
    // Half of it on each side of a row, which sees itself too.
    let local = keys.size("local_attention", limit::POSITIONS)?.unwrap_or(128);
    let window = sizes.window(Some(local / 2 + 1));
    let every = keys.size("global_attn_every_n_layers", limit::LAYERS)?.unwrap_or(3);
    let sliding = match sliding_layers(keys, sizes.layers)? {
        Some(sliding) => sliding,
        None => (0..sizes.layers).map(|layer| !layer.is_multiple_of(every)).collect(),
    };

    let (hidden, wide) = (sizes.hidden_size, sizes.intermediate_size);
    let norm = |module: &Module, name| match norm_bias {
        true => module.layer_norm(name, hidden, epsilon),
        false => Norm { centred: true, ..module.norm(name, hidden, epsilon) },
    };
    let [embeddings, layers] = ["embeddings", "layers"].map(Module::new);
    let layer = |index: usize| {
        let module = layers.at(index);
        let attention = Attention {
            qkv: vec![module.linear("attn.Wqkv", [3 * hidden, hidden], bias)],
            output: module.linear("attn.Wo", [hidden; 2], bias),
            ropes: Some([usize::from(sliding[index]); 2]),
            window: window.filter(|_| sliding[index]),
            both_ways: true,
            ..sizes.attention(&module, [bias; 2])
        };
        let mlp = Mlp {
            gate_up: vec![module.linear("mlp.Wi", [2 * wide, hidden], mlp_bias)],
            down: module.linear("mlp.Wo", [hidden, wide], mlp_bias),
            activation,
            learned: Vec::new(),
        };
        Layer {
            // What the first one reads has been normed.
            input_norm: (index > 0).then(|| norm(&module, "attn_norm")),
            mlp_norm: Some(norm(&module, "mlp_norm")),
            ..sizes.layer(&module, attention, FeedForward::Mlp(mlp))
        }
    };
    Ok(Architecture {
        embedding: embeddings.at("tok_embeddings").embedding(sizes.vocab_size, hidden),
        embedding_norm: Some(norm(&embeddings, "norm")),
        norm: norm(&Module::root(), "final_norm"),
        output: None,
        ..sizes.decoder(ropes, |_, index| layer(index))
    })
}

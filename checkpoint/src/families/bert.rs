//! BERT (`modeling_bert.py`), and RoBERTa and XLM-RoBERTa (`modeling_roberta.py`), which count positions from two:
//! encoders, of which vectors of texts are made.

use super::{Defaults, Family, Sizes};
use crate::Result;
use crate::architecture::{
    Activation, Architecture, Attention, FeedForward, Layer, Logits, Mixer, Mlp, Module, Norm,
    Positions,
};
use crate::keys::Keys;
use crate::rope::Rope;

pub(super) static BERT: Family = Family {
    model_type: "bert",
    class: "BertModel",
    // `configuration_bert.py` in transformers 5.
    defaults: Defaults {
        vocab_size: 30_522,
        hidden_size: 768,
        intermediate_size: 3072,
        num_hidden_layers: 12,
        num_attention_heads: 12,
        num_key_value_heads: None,
        head_dim: None,
        max_position_embeddings: 512,
        rms_norm_eps: 1e-12,
        rope_theta: 10_000.0,
        tie_word_embeddings: true,
        bos_token_id: None,
        eos_token_ids: &[],
    },
    architecture: |keys, sizes| encoder(keys, sizes, BERT.defaults.rms_norm_eps, 0),
};

pub(super) static ROBERTA: Family = Family {
    model_type: "roberta",
    class: "RobertaModel",
    // `configuration_roberta.py` in transformers 5.
    defaults: Defaults {
        vocab_size: 50_265,
        bos_token_id: Some(0),
        eos_token_ids: &[2],
        ..BERT.defaults
    },
    architecture: behind_padding,
};

pub(super) static XLM_ROBERTA: Family = Family {
    model_type: "xlm-roberta",
    class: "XLMRobertaModel",
    // `configuration_xlm_roberta.py` in transformers 5.
    defaults: Defaults { vocab_size: 30_522, ..ROBERTA.defaults },
    architecture: behind_padding,
};

/// Positions of RoBERTa begin behind that of padding, which has the number of its token.
fn behind_padding(keys: &Keys, sizes: &Sizes) -> Result<Architecture> {
    let padding = keys.count("pad_token_id", sizes.vocab_size)?.unwrap_or(1);
    if padding + 1 >= sizes.max_position_embeddings {
        let must = "positions begin behind it, and there is none in `max_position_embeddings`";
        return Err(keys.refuse("pad_token_id", must));
    }
    encoder(keys, sizes, ROBERTA.defaults.rms_norm_eps, padding + 1)
}

/// A model whose first position is that row of its table.
fn encoder(keys: &Keys, sizes: &Sizes, epsilon: f64, first: usize) -> Result<Architecture> {
    let activation = Activation::read(keys, "hidden_act", Activation::Gelu)?;
    if keys.string("position_embedding_type")?.is_some_and(|it| it != "absolute") {
        return Err(keys.refuse("position_embedding_type", "supported is \"absolute\""));
    }
    for key in ["is_decoder", "add_cross_attention"] {
        if keys.boolean(key)? == Some(true) {
            return Err(keys.refuse(key, "supported is false: these models are encoders"));
        }
    }
    let epsilon = keys.positive("layer_norm_eps")?.unwrap_or(epsilon);
    let texts = keys.size("type_vocab_size", 1 << 10)?.unwrap_or(2);
    let (hidden, wide) = (sizes.hidden_size, sizes.intermediate_size);
    let norm = |module: &Module| module.layer_norm("LayerNorm", hidden, epsilon);
    // Each norm is before what follows: the last one of a layer before the next layer.
    let [embeddings, layers] = ["embeddings", "encoder.layer"].map(Module::new);
    let layer = |index: usize| {
        let module = layers.at(index);
        let own = module.at("attention.self");
        let behind = module.at("attention.output");
        let attention = Attention {
            qkv: ["query", "key", "value"].map(|it| own.linear(it, [hidden; 2], true)).into(),
            output: behind.linear("dense", [hidden; 2], true),
            ropes: None,
            both_ways: true,
            ..sizes.attention(&module, [true; 2])
        };
        let mlp = Mlp {
            gate_up: vec![module.at("intermediate").linear("dense", [wide, hidden], true)],
            down: module.at("output").linear("dense", [hidden, wide], true),
            activation,
            learned: Vec::new(),
        };
        Layer {
            input_norm: index.checked_sub(1).map(|it| norm(&layers.at(it).at("output"))),
            mixer: Mixer::Attention(Box::new(attention)),
            mixer_norm: None,
            mlp_norm: Some(norm(&behind)),
            mlp: FeedForward::Mlp(mlp),
            output_norm: None,
            residual_scale: 1.0,
            parallel: false,
            norms_stream: true,
            given: None,
            scalar: None,
        }
    };
    let positions = sizes.max_position_embeddings;
    Ok(Architecture {
        embedding: embeddings.at("word_embeddings").embedding(sizes.vocab_size, hidden),
        embedding_scale: 1.0,
        positions: Some(Positions {
            embedding: embeddings.at("position_embeddings").embedding(positions, hidden),
            first,
            texts: Some(embeddings.at("token_type_embeddings").embedding(texts, hidden)),
        }),
        embedding_norm: Some(norm(&embeddings)),
        layer_inputs: None,
        // Nothing is rotated; it says how many positions there are.
        ropes: vec![Rope { positions: positions - first, ..sizes.rope(keys)? }],
        layers: (0..sizes.layers).map(layer).collect(),
        norm: last(&layers, sizes.layers, norm),
        output: None,
        logits: Logits { scale: 1.0, cap: None },
    })
}

/// The norm behind the last layer.
fn last(layers: &Module, count: usize, norm: impl Fn(&Module) -> Norm) -> Norm {
    norm(&layers.at(count - 1).at("output"))
}

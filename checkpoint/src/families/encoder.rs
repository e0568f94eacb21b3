//! Encoders whose norms are behind what was added, as Vaswani et al. have it: under BERT's names, or others.

use super::Sizes;
use crate::Result;
use crate::architecture::{
    Activation, Architecture, Attention, FeedForward, Layer, Mlp, Module, Norm, Positions,
};
use crate::keys::Keys;
use crate::rope::Rope;

/// What the parts of such a model are called, and what they are beside its sizes.
pub(super) struct PostNorm {
    /// The row of the first position.
    pub first: usize,
    /// Texts that are told apart.
    pub texts: Option<usize>,
    /// Of all norms.
    pub epsilon: f64,
    pub activation: Activation,
    /// The module that layers are in.
    pub layers: &'static str,
    pub names: Names,
}

/// Of the parts of a layer.
pub(super) struct Names {
    pub qkv: [&'static str; 3],
    pub output: &'static str,
    pub attention_norm: &'static str,
    pub up: &'static str,
    pub down: &'static str,
    pub mlp_norm: &'static str,
}

/// BERT's.
pub(super) const BERT: Names = Names {
    qkv: ["attention.self.query", "attention.self.key", "attention.self.value"],
    output: "attention.output.dense",
    attention_norm: "attention.output.LayerNorm",
    up: "intermediate.dense",
    down: "output.dense",
    mlp_norm: "output.LayerNorm",
};

impl PostNorm {
    /// The model, of which each norm is before what follows: the last one of a layer before the next layer.
    pub fn encoder(&self, keys: &Keys, sizes: &Sizes) -> Result<Architecture> {
        for key in ["is_decoder", "add_cross_attention"] {
            if keys.boolean(key)? == Some(true) {
                return Err(keys.refuse(key, "supported is false: these models are encoders"));
            }
        }
        let Self { first, names, .. } = self;
        let (hidden, positions) = (sizes.hidden_size, sizes.max_position_embeddings);
        let [embeddings, layers] = ["embeddings", self.layers].map(Module::new);
        let norm = |module: &Module, name| module.layer_norm(name, hidden, self.epsilon);
        let behind = |index: usize| norm(&layers.at(index), names.mlp_norm);
        let layer = |index: usize| {
            let input_norm = index.checked_sub(1).map(behind);
            self.layer(sizes, &layers.at(index), input_norm)
        };
        let texts = embeddings.at("token_type_embeddings");
        // Nothing is rotated; it says how many positions there are.
        let ropes = vec![Rope { positions: positions - first, ..sizes.rope(keys)? }];
        Ok(Architecture {
            embedding: embeddings.at("word_embeddings").embedding(sizes.vocab_size, hidden),
            positions: Some(Positions {
                embedding: embeddings.at("position_embeddings").embedding(positions, hidden),
                first: *first,
                texts: self.texts.map(|count| texts.embedding(count, hidden)),
            }),
            embedding_norm: Some(norm(&embeddings, "LayerNorm")),
            norm: behind(sizes.layers - 1),
            output: None,
            ..sizes.decoder(ropes, |_, index| layer(index))
        })
    }

    fn layer(&self, sizes: &Sizes, module: &Module, input_norm: Option<Norm>) -> Layer {
        let Self { names, epsilon, activation, .. } = self;
        let (hidden, wide) = (sizes.hidden_size, sizes.intermediate_size);
        let attention = Attention {
            qkv: names.qkv.map(|name| module.linear(name, [hidden; 2], true)).into(),
            output: module.linear(names.output, [hidden; 2], true),
            ropes: None,
            both_ways: true,
            ..sizes.attention(module, [true; 2])
        };
        let mlp = Mlp {
            gate_up: vec![module.linear(names.up, [wide, hidden], true)],
            down: module.linear(names.down, [hidden, wide], true),
            activation: *activation,
            learned: Vec::new(),
        };
        Layer {
            input_norm,
            mlp_norm: Some(module.layer_norm(names.attention_norm, hidden, *epsilon)),
            norms_stream: true,
            ..sizes.layer(module, attention, FeedForward::Mlp(mlp))
        }
    }
}

/// The row of the first position where that of padding, which has the number of its token, is before it.
pub(super) fn behind_padding(keys: &Keys, sizes: &Sizes) -> Result<usize> {
    let padding = keys.count("pad_token_id", sizes.vocab_size)?.unwrap_or(1);
    if padding + 1 >= sizes.max_position_embeddings {
        let must = "positions begin behind it, and there is none in `max_position_embeddings`";
        return Err(keys.refuse("pad_token_id", must));
    }
    Ok(padding + 1)
}

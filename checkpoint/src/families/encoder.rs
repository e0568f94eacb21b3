//! Encoders whose norms are behind what was added, as Vaswani et al. have it: of tokens that positions are added to or that
//! are rotated, with a gate or without one, under BERT's names or others.

use super::Sizes;
use crate::Result;
use crate::architecture::{
    Activation, Architecture, Attention, FeedForward, Layer, Mlp, Module, Norm, Positions,
};
use crate::keys::Keys;
use crate::rope::Rope;

/// What the parts of such a model are called, and what they are beside its sizes.
pub(super) struct PostNorm {
    /// The row of the first position; `None` where queries and keys are rotated.
    pub first: Option<usize>,
    /// Texts that are told apart.
    pub texts: Option<usize>,
    /// Of all norms.
    pub epsilon: f64,
    pub activation: Activation,
    /// Whether projections have biases.
    pub bias: bool,
    /// The module that layers are in.
    pub layers: &'static str,
    pub names: Names,
}

/// Of the norm of the embedding, and of the parts of a layer.
pub(super) struct Names {
    pub embedding_norm: &'static str,
    /// Three projections, or one.
    pub qkv: &'static [&'static str],
    pub output: &'static str,
    pub attention_norm: &'static str,
    pub gate: Option<&'static str>,
    pub up: &'static str,
    pub down: &'static str,
    pub mlp_norm: &'static str,
}

/// BERT's.
pub(super) const BERT: Names = Names {
    embedding_norm: "embeddings.LayerNorm",
    qkv: &["attention.self.query", "attention.self.key", "attention.self.value"],
    output: "attention.output.dense",
    attention_norm: "attention.output.LayerNorm",
    gate: None,
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
        let (hidden, all) = (sizes.hidden_size, sizes.max_position_embeddings);
        let [embeddings, layers] = ["embeddings", self.layers].map(Module::new);
        let norm = |module: &Module, name| module.layer_norm(name, hidden, self.epsilon);
        let behind = |index: usize| norm(&layers.at(index), names.mlp_norm);
        let layer = |index: usize| {
            let input_norm = index.checked_sub(1).map(behind);
            self.layer(sizes, &layers.at(index), input_norm)
        };
        let texts = embeddings.at("token_type_embeddings");
        // Where nothing is rotated it says how many positions there are.
        let ropes = vec![Rope { positions: all - first.unwrap_or(0), ..sizes.rope(keys)? }];
        let positions = first.map(|first| {
            let embedding = embeddings.at("position_embeddings").embedding(all, hidden);
            Positions { embedding, first }
        });
        Ok(Architecture {
            embedding: embeddings.at("word_embeddings").embedding(sizes.vocab_size, hidden),
            positions,
            texts: self.texts.map(|count| texts.embedding(count, hidden)),
            embedding_norm: Some(norm(&Module::root(), names.embedding_norm)),
            norm: behind(sizes.layers - 1),
            output: None,
            ..sizes.decoder(ropes, |_, index| layer(index))
        })
    }

    fn layer(&self, sizes: &Sizes, module: &Module, input_norm: Option<Norm>) -> Layer {
        let Self { names, epsilon, activation, .. } = self;
        let (hidden, wide) = (sizes.hidden_size, sizes.intermediate_size);
        let linear = |name: &&str, shape| module.linear(name, shape, self.bias);
        let each = 3 * hidden / names.qkv.len();
        let attention = Attention {
            qkv: names.qkv.iter().map(|name| linear(name, [each, hidden])).collect(),
            output: linear(&names.output, [hidden; 2]),
            ropes: self.first.is_none().then_some([0; 2]),
            both_ways: true,
            ..sizes.attention(module, [self.bias; 2])
        };
        let gate_up = names.gate.iter().chain([&names.up]);
        let mlp = Mlp {
            gate_up: gate_up.map(|name| linear(name, [wide, hidden])).collect(),
            down: linear(&names.down, [hidden, wide]),
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

//! DistilBERT (`modeling_distilbert.py`): BERT that does not tell two texts apart, under names and keys of its own.

use super::encoder::{self, Names, PostNorm};
use super::{Defaults, Family, bert};
use crate::architecture::Activation;

pub(super) static FAMILY: Family = Family {
    model_type: "distilbert",
    class: "DistilBertModel",
    // `configuration_distilbert.py` in transformers 5.
    defaults: Defaults { num_hidden_layers: 6, ..bert::BERT.defaults },
    architecture: |keys, sizes| {
        let of = PostNorm {
            first: Some(0),
            texts: None,
            epsilon: 1e-12,
            activation: Activation::read(keys, "activation", Activation::Gelu)?,
            bias: true,
            layers: "transformer.layer",
            names: Names {
                qkv: &["attention.q_lin", "attention.k_lin", "attention.v_lin"],
                output: "attention.out_lin",
                attention_norm: "sa_layer_norm",
                up: "ffn.lin1",
                down: "ffn.lin2",
                mlp_norm: "output_layer_norm",
                ..encoder::BERT
            },
        };
        of.encoder(keys, sizes)
    },
};

//! MPNet (`modeling_mpnet.py`): BERT whose scores depend on how far apart tokens are too, which does not tell two texts apart.

use super::encoder::{self, Names, PostNorm};
use super::{Defaults, Family, bert};
use crate::architecture::{Activation, Architecture, Distances, Module};

pub(super) static FAMILY: Family = Family {
    model_type: "mpnet",
    class: "MPNetModel",
    // `configuration_mpnet.py` in transformers 5.
    defaults: Defaults {
        vocab_size: 30_527,
        bos_token_id: Some(0),
        eos_token_ids: &[2],
        ..bert::BERT.defaults
    },
    architecture: |keys, sizes| {
        let of = PostNorm {
            // That of padding is before it, whatever `pad_token_id` says.
            first: Some(2),
            texts: None,
            epsilon: keys.positive("layer_norm_eps")?.unwrap_or(FAMILY.defaults.rms_norm_eps),
            activation: Activation::read(keys, "hidden_act", Activation::Gelu)?,
            bias: true,
            layers: "encoder.layer",
            names: Names {
                qkv: &["attention.attn.q", "attention.attn.k", "attention.attn.v"],
                output: "attention.attn.o",
                attention_norm: "attention.LayerNorm",
                ..encoder::BERT
            },
        };
        let key = "relative_attention_num_buckets";
        if keys.size(key, 1 << 10)?.is_some_and(|it| it != BUCKETS) {
            return Err(keys.refuse(key, "supported is 32: transformers takes no others"));
        }
        if sizes.max_position_embeddings <= 2 {
            return Err(keys.refuse("max_position_embeddings", "positions begin behind two others"));
        }
        let module = Module::new("encoder.relative_attention_bias");
        let distances = Distances { scores: module.distances(BUCKETS, sizes.heads), most: 128 };
        Ok(Architecture { distances: Some(distances), ..of.encoder(keys, sizes)? })
    },
};

/// Of distances.
const BUCKETS: usize = 32;

//! MPNet (`modeling_mpnet.py`): BERT whose scores depend on how far apart tokens are too, which does not tell two texts apart.

use super::encoder::{self, Names, PostNorm, behind_padding};
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
            first: behind_padding(keys, sizes)?,
            texts: None,
            epsilon: keys.positive("layer_norm_eps")?.unwrap_or(FAMILY.defaults.rms_norm_eps),
            activation: Activation::read(keys, "hidden_act", Activation::Gelu)?,
            layers: "encoder.layer",
            names: Names {
                qkv: ["attention.attn.q", "attention.attn.k", "attention.attn.v"],
                output: "attention.attn.o",
                attention_norm: "attention.LayerNorm",
                ..encoder::BERT
            },
        };
        let buckets = keys.size("relative_attention_num_buckets", 1 << 10)?.unwrap_or(32);
        if buckets < 4 || !buckets.is_multiple_of(4) {
            let must = "expected a multiple of 4: half of them are before a token, half of these of one distance each";
            return Err(keys.refuse("relative_attention_num_buckets", must));
        }
        let module = Module::new("encoder.relative_attention_bias");
        let distances = Distances { scores: module.distances(buckets, sizes.heads), most: 128 };
        Ok(Architecture { distances: Some(distances), ..of.encoder(keys, sizes)? })
    },
};

//! NomicBERT (`modeling_nomic_bert.py`): BERT that rotates queries and keys, with a gate and without biases. Transformers calls
//! tensors as the model's own code does, which calls keys otherwise.

use super::encoder::{Names, PostNorm};
use super::{Defaults, Family, bert};
use crate::Result;
use crate::architecture::Activation;
use crate::keys::Keys;

pub(super) static FAMILY: Family = Family {
    model_type: "nomic_bert",
    class: "NomicBertModel",
    // `configuration_nomic_bert.py` in transformers 5.
    defaults: Defaults {
        vocab_size: 30_528,
        max_position_embeddings: 2048,
        rope_theta: 1000.0,
        ..bert::BERT.defaults
    },
    architecture: |keys, sizes| {
        check(keys)?;
        let of = PostNorm {
            first: None,
            texts: bert::texts(keys)?,
            epsilon: keys.positive("layer_norm_eps")?.unwrap_or(bert::BERT.defaults.rms_norm_eps),
            activation: Activation::read(keys, "hidden_act", Activation::Silu)?,
            bias: false,
            layers: "encoder.layers",
            names: NAMES,
        };
        of.encoder(keys, sizes)
    },
};

const NAMES: Names = Names {
    embedding_norm: "emb_ln",
    qkv: &["attn.Wqkv"],
    output: "attn.out_proj",
    attention_norm: "norm1",
    gate: Some("mlp.fc12"),
    up: "mlp.fc11",
    down: "mlp.fc2",
    mlp_norm: "norm2",
};

/// Refuses what the model's own code can do and no published model has but the mixture of experts.
fn check(keys: &Keys) -> Result<()> {
    for key in [
        "prenorm",
        "qkv_proj_bias",
        "mlp_fc1_bias",
        "mlp_fc2_bias",
        "use_rms_norm",
        "rotary_emb_interleaved",
        "causal",
    ] {
        if keys.boolean(key)? == Some(true) {
            return Err(keys.refuse(key, "supported is false"));
        }
    }
    if keys.string("activation_function")?.is_some_and(|it| it != "swiglu") {
        return Err(keys.refuse("activation_function", "supported is \"swiglu\""));
    }
    if keys.value("rotary_emb_scale_base").is_some() {
        return Err(keys.refuse("rotary_emb_scale_base", "supported is null"));
    }
    if keys.value("rotary_emb_fraction").is_some_and(|it| it.as_f64() != Some(1.0)) {
        return Err(keys.refuse("rotary_emb_fraction", "supported is 1.0"));
    }
    if keys.count("moe_every_n_layers", 1 << 12)?.is_some_and(|every| every > 0) {
        return Err(keys.refuse("moe_every_n_layers", "experts of this family are not supported"));
    }
    Ok(())
}

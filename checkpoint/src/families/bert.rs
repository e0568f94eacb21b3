//! BERT (`modeling_bert.py`), and RoBERTa, XLM-RoBERTa and CamemBERT (`modeling_roberta.py`), which count positions from two:
//! encoders, of which vectors of texts are made.

use super::encoder::{self, PostNorm, behind_padding};
use super::{Defaults, Family, Sizes};
use crate::Result;
use crate::architecture::{Activation, Architecture};
use crate::keys::Keys;

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
    architecture: |keys, sizes| bert(keys, sizes, 0),
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
    architecture: roberta,
};

pub(super) static XLM_ROBERTA: Family = Family {
    model_type: "xlm-roberta",
    class: "XLMRobertaModel",
    // `configuration_xlm_roberta.py` in transformers 5.
    defaults: Defaults { vocab_size: 30_522, ..ROBERTA.defaults },
    architecture: roberta,
};

pub(super) static CAMEMBERT: Family = Family {
    model_type: "camembert",
    class: "CamembertModel",
    // `configuration_camembert.py` in transformers 5.
    defaults: Defaults { vocab_size: 30_522, ..ROBERTA.defaults },
    architecture: roberta,
};

fn roberta(keys: &Keys, sizes: &Sizes) -> Result<Architecture> {
    bert(keys, sizes, behind_padding(keys, sizes)?)
}

/// Texts that are told apart, if some are.
pub(super) fn texts(keys: &Keys) -> Result<Option<usize>> {
    let texts = keys.count("type_vocab_size", 1 << 10)?.unwrap_or(2);
    Ok(Some(texts).filter(|&texts| texts > 0))
}

/// A model whose first position is that row of its table.
fn bert(keys: &Keys, sizes: &Sizes, first: usize) -> Result<Architecture> {
    if keys.string("position_embedding_type")?.is_some_and(|it| it != "absolute") {
        return Err(keys.refuse("position_embedding_type", "supported is \"absolute\""));
    }
    let of = PostNorm {
        first: Some(first),
        texts: texts(keys)?,
        epsilon: keys.positive("layer_norm_eps")?.unwrap_or(BERT.defaults.rms_norm_eps),
        activation: Activation::read(keys, "hidden_act", Activation::Gelu)?,
        bias: true,
        layers: "encoder.layer",
        names: encoder::BERT,
    };
    of.encoder(keys, sizes)
}

//! Gemma 2 (`modeling_gemma2.py`): norms on both sides of attention and MLP, whose weights lie around zero,
//! capped scores and logits, windows in every other layer.

use super::parts::one_more;
use super::window::alternating;
use super::{Defaults, Family, Sizes};
use crate::Result;
use crate::architecture::{
    Activation, Architecture, Attention, FeedForward, Layer, Logits, Module,
};
use crate::keys::Keys;

pub(super) static FAMILY: Family = Family {
    model_type: "gemma2",
    class: "Gemma2ForCausalLM",
    // `configuration_gemma2.py` in transformers 5.
    defaults: Defaults {
        vocab_size: 256_000,
        hidden_size: 2304,
        intermediate_size: 9216,
        num_hidden_layers: 26,
        num_attention_heads: 8,
        num_key_value_heads: Some(4),
        head_dim: Some(256),
        max_position_embeddings: 8192,
        rms_norm_eps: 1e-6,
        rope_theta: 10_000.0,
        tie_word_embeddings: true,
        bos_token_id: Some(2),
        eos_token_ids: &[1],
    },
    architecture,
};

fn architecture(keys: &Keys, sizes: &Sizes) -> Result<Architecture> {
    let activation = activation(keys)?;
    let bias = keys.boolean("attention_bias")?.unwrap_or(false);
    let scale = scale(keys)?;
    let attention_cap = cap(keys, "attn_logit_softcapping", Some(50.0))?;
    let logit_cap = cap(keys, "final_logit_softcapping", Some(30.0))?;
    let (sliding, window) = alternating(keys, sizes, 4096, |layer| layer % 2 == 0)?;
    let architecture = sizes.decoder(vec![sizes.rope(keys)?], |layer, index| {
        let attention = Attention {
            scale,
            cap: attention_cap,
            window: window.filter(|_| sliding[index]),
            ..sizes.attention(layer, [bias; 2])
        };
        around(sizes, layer, attention, sizes.mlp(layer, false, activation))
    });
    Ok(gemma(
        keys,
        sizes,
        Architecture { logits: Logits { scale: 1.0, cap: logit_cap }, ..architecture },
    ))
}

/// A layer of norms on both sides of attention and of the MLP.
pub(super) fn around(
    sizes: &Sizes,
    layer: &Module,
    attention: Attention,
    mlp: FeedForward,
) -> Layer {
    let norm = |name| Some(sizes.norm(layer, name));
    Layer {
        mixer_norm: norm("post_attention_layernorm"),
        mlp_norm: norm("pre_feedforward_layernorm"),
        output_norm: norm("post_feedforward_layernorm"),
        ..sizes.layer(layer, attention, mlp)
    }
}

/// What all Gemmas have: embeddings times the root of their width, and norms of one plus their weight.
pub(super) fn gemma(keys: &Keys, sizes: &Sizes, mut architecture: Architecture) -> Architecture {
    architecture.embedding_scale = (sizes.hidden_size as f64).sqrt() as f32;
    one_more(keys, architecture)
}

/// What scores are multiplied with.
pub(super) fn scale(keys: &Keys) -> Result<f32> {
    Ok(keys.positive("query_pre_attn_scalar")?.unwrap_or(256.0).powf(-0.5) as f32)
}

/// A cap; an explicit null is none.
pub(super) fn cap(keys: &Keys, key: &str, default: Option<f64>) -> Result<Option<f32>> {
    let cap = match keys.positive(key)? {
        None if keys.map.contains_key(key) => None,
        cap => cap.or(default),
    };
    Ok(cap.map(|cap| cap as f32))
}

pub(super) fn activation(keys: &Keys) -> Result<Activation> {
    activation_or(keys, Activation::GeluTanh)
}

/// The same, else `default`.
pub(super) fn activation_or(keys: &Keys, default: Activation) -> Result<Activation> {
    if keys.boolean("use_bidirectional_attention")? == Some(true) {
        return Err(keys.refuse("use_bidirectional_attention", "supported is false"));
    }
    Activation::read(keys, "hidden_activation", default)
}

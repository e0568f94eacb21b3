//! LFM2 and LFM2.5 where they are dense (`modeling_lfm2.py`): most layers mix rows by a short convolution, the
//! others by attention as Qwen3's.

use super::{Defaults, Family, Sizes, limit};
use crate::Result;
use crate::architecture::{
    Activation, Architecture, Attention, FeedForward, Layer, Mixer, Mlp, Module, QkNorm,
    ShortConvolution,
};
use crate::keys::Keys;

pub(super) static FAMILY: Family = Family {
    model_type: "lfm2",
    class: "Lfm2ForCausalLM",
    // `configuration_lfm2.py` in transformers 5.
    defaults: Defaults {
        vocab_size: 65_536,
        hidden_size: 2560,
        intermediate_size: 12_288,
        num_hidden_layers: 32,
        num_attention_heads: 32,
        num_key_value_heads: Some(8),
        head_dim: None,
        max_position_embeddings: 128_000,
        rms_norm_eps: 1e-5,
        rope_theta: 1_000_000.0,
        tie_word_embeddings: true,
        bos_token_id: Some(1),
        eos_token_ids: &[2],
    },
    architecture,
};

fn architecture(keys: &Keys, sizes: &Sizes) -> Result<Architecture> {
    let sizes = &Sizes { intermediate_size: intermediate_size(keys, sizes)?, ..*sizes };
    decoder(keys, sizes, |layer, _| FeedForward::Mlp(mlp(sizes, layer)))
}

/// A model whose layers mix rows by convolutions or attention, and then do what `mlp` makes of their modules
/// and numbers.
pub(super) fn decoder(
    keys: &Keys,
    sizes: &Sizes,
    mlp: impl Fn(&Module, usize) -> FeedForward,
) -> Result<Architecture> {
    if keys.boolean("conv_bias")? == Some(true) {
        return Err(keys.refuse("conv_bias", "supported is false"));
    }
    if !sizes.hidden_size.is_multiple_of(2) {
        return Err(keys.refuse("hidden_size", "rows of convolutions are kept in two halves"));
    }
    let sizes = &Sizes {
        rms_norm_eps: keys.positive("norm_eps")?.unwrap_or(FAMILY.defaults.rms_norm_eps),
        ..*sizes
    };
    let rows = keys.size("conv_L_cache", MOST_ROWS)?.unwrap_or(3);
    let attends = attends(keys, sizes.layers)?;
    let model = sizes.decoder(vec![sizes.rope(keys)?], |layer, index| {
        let mixer = match attends[index] {
            true => Mixer::Attention(Box::new(attention(sizes, layer))),
            false => Mixer::ShortConvolution(Box::new(convolution(sizes, layer, rows))),
        };
        Layer {
            input_norm: Some(sizes.norm(layer, "operator_norm")),
            mixer,
            mixer_norm: None,
            mlp_norm: Some(sizes.norm(layer, "ffn_norm")),
            mlp: mlp(layer, index),
            output_norm: None,
            residual_scale: 1.0,
            parallel: false,
            norms_stream: false,
            given: None,
            scalar: None,
        }
    });
    Ok(Architecture { norm: sizes.norm(&Module::new("model"), "embedding_norm"), ..model })
}

/// What the projections of an MLP are called.
pub(super) const NAMES: [&str; 3] = ["w1", "w3", "w2"];

/// The MLP of a layer.
pub(super) fn mlp(sizes: &Sizes, layer: &Module) -> Mlp {
    let (module, wide) = (layer.at("feed_forward"), sizes.intermediate_size);
    sizes.mlp_of(&module, NAMES, wide, false, Activation::Silu)
}

/// Rows that a convolution may see: each is a loop of its own in graphs.
const MOST_ROWS: usize = 16;

fn attention(sizes: &Sizes, layer: &Module) -> Attention {
    let module = layer.at("self_attn");
    let norm = |name| module.norm(name, sizes.head_dim, sizes.rms_norm_eps);
    Attention {
        qk_norm: Some(QkNorm {
            query: norm("q_layernorm"),
            key: Some(norm("k_layernorm")),
            rotated: false,
        }),
        output: module.linear("out_proj", [sizes.hidden_size, sizes.query_width()], false),
        ..sizes.attention(layer, [false; 2])
    }
}

fn convolution(sizes: &Sizes, layer: &Module, rows: usize) -> ShortConvolution {
    let (module, width) = (layer.at("conv"), sizes.hidden_size);
    ShortConvolution {
        input: module.linear("in_proj", [3 * width, width], false),
        taps: module.taps("conv", width, rows),
        output: module.linear("out_proj", [width, width], false),
    }
}

/// Width of the MLP: the key's, or what is made of it.
fn intermediate_size(keys: &Keys, sizes: &Sizes) -> Result<usize> {
    let said = keys.size("block_ff_dim", limit::WIDTH)?.unwrap_or(sizes.intermediate_size);
    if keys.boolean("block_auto_adjust_ff_dim")? == Some(false) {
        return Ok(said);
    }
    let multiplier = keys.positive("block_ffn_dim_multiplier")?.unwrap_or(1.0);
    let multiple = keys.size("block_multiple_of", limit::WIDTH)?.unwrap_or(256);
    let wide = ((multiplier * (2 * said / 3) as f64) as usize).div_ceil(multiple);
    match wide.saturating_mul(multiple) {
        wide @ 1..=limit::WIDTH => Ok(wide),
        wide => Err(keys.refuse(
            "block_ffn_dim_multiplier",
            format_args!("with the other keys it makes an MLP of width {wide}"),
        )),
    }
}

/// Whether each layer attends.
fn attends(keys: &Keys, layers: usize) -> Result<Vec<bool>> {
    let Some(types) = keys.strings("layer_types")? else {
        let indices = keys.numbers("full_attn_idxs")?;
        let attends = |layer| indices.as_ref().is_none_or(|indices| indices.contains(&layer));
        return Ok((0..layers).map(attends).collect());
    };
    if types.len() != layers {
        return Err(keys.error(format!(
            "`layer_types` has {} entries for {layers} layers (`num_hidden_layers`)",
            types.len()
        )));
    }
    let attends = |layer_type: &str| match layer_type {
        "full_attention" => Ok(true),
        "conv" => Ok(false),
        _ => Err(keys.refuse("layer_types", "supported are \"full_attention\" and \"conv\"")),
    };
    types.into_iter().map(attends).collect()
}

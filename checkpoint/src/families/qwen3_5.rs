//! Qwen3.5's text model where it is dense (`modeling_qwen3_5.py`): three of four layers are linear attention by
//! the gated delta rule, the others attend as Qwen3's, with a gate for each head's output and a quarter of each
//! head rotated. Norms are of one plus their weight, but for the one that `z` gates. Those with experts, and
//! Qwen3-Next, are the same but for their MLPs.
//!
//! Positions of images have three coordinates (`mrope_section`), which are the same for text: nothing is left of
//! them here.

use super::parts::one_more;
use super::{Defaults, Family, Sizes, limit};
use crate::Result;
use crate::architecture::{
    Activation, Architecture, Attention, FeedForward, GatedDelta, Layer, Linear, Mixer, Module,
};
use crate::key_heads::KeyHeads;
use crate::keys::Keys;

pub(super) static FAMILY: Family = Family {
    model_type: "qwen3_5_text",
    class: "Qwen3_5ForCausalLM",
    // `configuration_qwen3_5.py` in transformers 5.
    defaults: Defaults {
        vocab_size: 248_320,
        hidden_size: 4096,
        intermediate_size: 12_288,
        num_hidden_layers: 32,
        num_attention_heads: 16,
        num_key_value_heads: Some(4),
        head_dim: Some(256),
        max_position_embeddings: 32_768,
        rms_norm_eps: 1e-6,
        rope_theta: 10_000.0,
        tie_word_embeddings: false,
        bos_token_id: None,
        eos_token_ids: &[],
    },
    architecture,
};

fn architecture(keys: &Keys, sizes: &Sizes) -> Result<Architecture> {
    with_mlps(keys, sizes, |layer, _| sizes.mlp(layer, false, Activation::Silu))
}

/// A model whose layers have the MLPs that `mlp` makes of their modules and numbers.
pub(super) fn with_mlps(
    keys: &Keys,
    sizes: &Sizes,
    mlp: impl Fn(&Module, usize) -> FeedForward,
) -> Result<Architecture> {
    let activation = Activation::read(keys, "hidden_act", Activation::Silu)?;
    if activation != Activation::Silu {
        return Err(keys.refuse("hidden_act", "supported is \"silu\": convolutions have it too"));
    }
    if keys.boolean("attn_output_gate")? == Some(false) {
        return Err(keys.refuse("attn_output_gate", "supported is true"));
    }
    let bias = keys.boolean("attention_bias")?.unwrap_or(false);
    let delta = Delta::read(keys)?;
    let attends = attends(keys, sizes.layers)?;
    let ropes = vec![sizes.partial_rope(keys, 0.25)?];
    let architecture = sizes.decoder(ropes, |layer, index| {
        let mlp = mlp(layer, index);
        let with_attention = sizes.layer(layer, attention(sizes, layer, bias), mlp);
        match attends[index] {
            true => with_attention,
            false => Layer { mixer: delta.of(sizes, layer), ..with_attention },
        }
    });
    Ok(one_more(keys, architecture))
}

fn attention(sizes: &Sizes, layer: &Module, bias: bool) -> Attention {
    let plain = sizes.attention(layer, [bias; 2]);
    let module = layer.at("self_attn");
    let queries = module.linear("q_proj", [2 * sizes.query_width(), sizes.hidden_size], bias);
    let others = plain.qkv[1..].iter().cloned();
    Attention {
        qkv: std::iter::once(queries).chain(others).collect(),
        gated: true,
        qk_norm: Some(sizes.qk_norm(layer)),
        ..plain
    }
}

/// The sizes of linear attention.
struct Delta {
    key_heads: usize,
    value_heads: usize,
    key_dim: usize,
    value_dim: usize,
    /// Rows that the convolution sees.
    rows: usize,
    tiled: bool,
}

/// Rows that a convolution may see: each is a loop of its own in graphs.
const MOST_ROWS: usize = 16;

impl Delta {
    fn read(keys: &Keys) -> Result<Self> {
        let size =
            |key, max, default| Ok::<_, crate::Error>(keys.size(key, max)?.unwrap_or(default));
        let KeyHeads { heads: key_heads, width: key_dim } = KeyHeads::read(keys)?;
        let value_heads = size("linear_num_value_heads", limit::HEADS, 32)?;
        if !value_heads.is_multiple_of(key_heads) {
            return Err(keys.error(format!(
                "`linear_num_value_heads` is {value_heads}: it must be a multiple of \
                 `linear_num_key_heads`, {key_heads}"
            )));
        }
        let rows = size("linear_conv_kernel_dim", MOST_ROWS, 4)?;
        if rows < 2 {
            return Err(keys
                .refuse("linear_conv_kernel_dim", format_args!("supported are 2 to {MOST_ROWS}")));
        }
        Ok(Self {
            key_heads,
            value_heads,
            key_dim,
            value_dim: size("linear_value_head_dim", limit::HEAD_DIM, 128)?,
            rows,
            // One value head for each of keys lies in either order.
            tiled: value_heads > key_heads
                && keys.map.contains_key(crate::gguf::VALUE_HEADS_ARE_TILED),
        })
    }

    /// `layer.linear_attn`.
    fn of(&self, sizes: &Sizes, layer: &Module) -> Mixer {
        let &Self { key_heads, value_heads, key_dim, value_dim, rows, tiled } = self;
        let (module, hidden) = (layer.at("linear_attn"), sizes.hidden_size);
        let values = value_heads * value_dim;
        let channels = 2 * key_heads * key_dim + values;
        let matrix = |name, width| module.linear(name, [width, hidden], false);
        let deciding = |name| -> Linear { module.router(name, [value_heads, hidden], false) };
        Mixer::GatedDelta(Box::new(GatedDelta {
            inputs: vec![
                matrix("in_proj_qkv", channels),
                matrix("in_proj_z", values),
                deciding("in_proj_b"),
                deciding("in_proj_a"),
            ],
            taps: module.taps("conv1d", channels, rows),
            decay: module.decay("A_log", value_heads),
            step: module.bias("dt_bias", value_heads),
            norm: module.norm("norm", value_dim, sizes.rms_norm_eps),
            output: module.linear("out_proj", [hidden, values], false),
            key_heads,
            value_heads,
            key_dim,
            value_dim,
            tiled,
        }))
    }
}

/// Whether each layer attends; one at least does.
fn attends(keys: &Keys, layers: usize) -> Result<Vec<bool>> {
    const INTERVAL: &str = "full_attention_interval";
    let Some(types) = keys.strings("layer_types")? else {
        let interval = keys.size(INTERVAL, limit::LAYERS)?.unwrap_or(4);
        if interval > layers {
            let must = format_args!("of {layers} layers (`num_hidden_layers`) none would attend");
            return Err(keys.refuse(INTERVAL, must));
        }
        return Ok((1..=layers).map(|layer| layer.is_multiple_of(interval)).collect());
    };
    if types.len() != layers {
        return Err(keys.error(format!(
            "`layer_types` has {} entries for {layers} layers (`num_hidden_layers`)",
            types.len()
        )));
    }
    let attends = |layer_type: &str| match layer_type {
        "full_attention" => Ok(true),
        "linear_attention" => Ok(false),
        _ => {
            Err(keys
                .refuse("layer_types", "supported are \"full_attention\" and \"linear_attention\""))
        }
    };
    let attends: Vec<_> = types.into_iter().map(attends).collect::<Result<_>>()?;
    if !attends.contains(&true) {
        return Err(keys.refuse("layer_types", "at least one layer has to be \"full_attention\""));
    }
    Ok(attends)
}

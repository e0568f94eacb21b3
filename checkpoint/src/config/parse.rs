//! From JSON to [`ModelConfig`], with Hugging Face's defaults where a key is absent.

use std::path::Path;

use serde_json::Map;

use super::keys::{Keys, read_object, shown};
use super::{Family, ModelConfig, RopeScaling};
use crate::{Error, Result};

impl ModelConfig {
    /// Reads `config.json` and, if there is one, `generation_config.json` in `folder`.
    ///
    /// Absent keys take the defaults of the family's configuration class in Hugging Face
    /// transformers. Both the older form (`rope_theta`, `rope_scaling`) and the newer one
    /// (`rope_parameters`) are understood.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] names the file, the key, its value and what is supported;
    /// [`Error::Io`] when a file cannot be read.
    pub fn from_dir(folder: &Path) -> Result<Self> {
        let path = folder.join("config.json");
        let Some(config) = read_object(&path)? else {
            let message = if folder.is_dir() {
                "not found: a model folder holds config.json, *.safetensors and tokenizer.json \
                 (Hugging Face layout)"
            } else {
                "the folder does not exist: check the model's path"
            };
            return Err(Error::Config { path, message: message.into() });
        };
        let generation_path = folder.join("generation_config.json");
        let generation = read_object(&generation_path)?.unwrap_or_default();
        parse(
            &Keys { path: &path, prefix: "", map: &config },
            &Keys { path: &generation_path, prefix: "", map: &generation },
        )
    }
}

/// Bounds far above any published model: beyond them a configuration is a mistake, and below them
/// no product of two sizes overflows.
mod limit {
    pub const VOCAB: usize = 1 << 24;
    pub const WIDTH: usize = 1 << 20;
    pub const LAYERS: usize = 1 << 12;
    pub const HEADS: usize = 1 << 12;
    pub const HEAD_DIM: usize = 1 << 12;
    pub const POSITIONS: usize = 1 << 28;
}

/// What the configuration class of a family takes where `config.json` is silent.
struct Defaults {
    vocab_size: usize,
    intermediate_size: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    max_position_embeddings: usize,
    bos_token_id: Option<u32>,
    eos_token_id: Option<u32>,
}

impl Defaults {
    /// `configuration_{llama,mistral,qwen2,qwen3}.py` in transformers 5.
    fn of(family: Family) -> Self {
        let qwen = Self {
            vocab_size: 151_936,
            intermediate_size: 22_016,
            num_key_value_heads: Some(32),
            head_dim: None,
            max_position_embeddings: 32_768,
            bos_token_id: None,
            eos_token_id: None,
        };
        match family {
            Family::Llama => Self {
                vocab_size: 32_000,
                intermediate_size: 11_008,
                num_key_value_heads: None,
                head_dim: None,
                max_position_embeddings: 2048,
                bos_token_id: Some(1),
                eos_token_id: Some(2),
            },
            Family::Mistral => Self {
                vocab_size: 32_000,
                intermediate_size: 14_336,
                num_key_value_heads: Some(8),
                head_dim: None,
                max_position_embeddings: 4096 * 32,
                bos_token_id: Some(1),
                eos_token_id: Some(2),
            },
            Family::Qwen2 => qwen,
            Family::Qwen3 => Self { head_dim: Some(128), ..qwen },
        }
    }
}

fn parse(config: &Keys, generation: &Keys) -> Result<ModelConfig> {
    let family = family(config)?;
    let defaults = Defaults::of(family);
    if let Some(quantization) = config.object("quantization_config")? {
        let method = quantization.get("quant_method").map_or_else(|| "unnamed".into(), shown);
        return Err(config.error(format!(
            "`quantization_config` asks for quantised weights (quant_method {method}), which are \
             not supported: use the original bf16, f16 or f32 checkpoint"
        )));
    }
    if !matches!(config.string("hidden_act")?, None | Some("silu" | "swish")) {
        return Err(config.refuse("hidden_act", "supported is \"silu\""));
    }

    let vocab_size = config.size("vocab_size", limit::VOCAB)?.unwrap_or(defaults.vocab_size);
    let hidden_size = config.size("hidden_size", limit::WIDTH)?.unwrap_or(4096);
    let heads = config.size("num_attention_heads", limit::HEADS)?.unwrap_or(32);
    let layers = config.size("num_hidden_layers", limit::LAYERS)?.unwrap_or(32);
    let max_position_embeddings = config
        .size("max_position_embeddings", limit::POSITIONS)?
        .unwrap_or(defaults.max_position_embeddings);
    let head_dim = head_dim(config, hidden_size, heads, defaults.head_dim)?;
    let kv_heads = match config.size("num_key_value_heads", limit::HEADS)? {
        Some(n) => n,
        // An explicit null means one for each query head in every family.
        None if config.map.contains_key("num_key_value_heads") => heads,
        None => defaults.num_key_value_heads.unwrap_or(heads),
    };
    if !heads.is_multiple_of(kv_heads) {
        return Err(config.error(format!(
            "`num_key_value_heads` is {kv_heads}: it must divide `num_attention_heads`, {heads}"
        )));
    }

    let (rope_theta, rope_scaling) = rope(config, max_position_embeddings)?;
    let attention_bias = config.boolean("attention_bias")?.unwrap_or(false);
    let (qkv_bias, o_bias) = match family {
        Family::Llama | Family::Qwen3 => (attention_bias, attention_bias),
        Family::Mistral => (false, false),
        Family::Qwen2 => (true, false),
    };
    let mlp_bias = family == Family::Llama && config.boolean("mlp_bias")?.unwrap_or(false);

    let ids = |key, default: Option<u32>| -> Result<Vec<u32>> {
        let mut ids = match generation.token_ids(key)? {
            Some(ids) => ids,
            None => match config.token_ids(key)? {
                Some(ids) => ids,
                None if config.map.contains_key(key) => Vec::new(),
                None => default.into_iter().collect(),
            },
        };
        ids.retain(|id| (*id as usize) < vocab_size);
        Ok(ids)
    };

    Ok(ModelConfig {
        family,
        vocab_size,
        hidden_size,
        intermediate_size: config
            .size("intermediate_size", limit::WIDTH)?
            .unwrap_or(defaults.intermediate_size),
        num_hidden_layers: layers,
        num_attention_heads: heads,
        num_key_value_heads: kv_heads,
        head_dim,
        max_position_embeddings,
        rms_norm_eps: config.positive("rms_norm_eps")?.unwrap_or(1e-6),
        rope_theta,
        rope_scaling,
        tie_word_embeddings: config.boolean("tie_word_embeddings")?.unwrap_or(false),
        qkv_bias,
        o_bias,
        mlp_bias,
        qk_norm: family == Family::Qwen3,
        sliding_window: sliding_window(config, family, layers, max_position_embeddings)?,
        eos_token_ids: ids("eos_token_id", defaults.eos_token_id)?,
        bos_token_id: ids("bos_token_id", defaults.bos_token_id)?.first().copied(),
    })
}

fn family(config: &Keys) -> Result<Family> {
    let known = || {
        let names: Vec<_> = Family::ALL.iter().map(|(_, family)| family.architecture()).collect();
        format!("supported are {}", names.join(", "))
    };
    let by_type = match config.string("model_type")? {
        None => None,
        Some(name) => Some(
            Family::ALL
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, family)| *family)
                .ok_or_else(|| config.refuse("model_type", known()))?,
        ),
    };
    let by_class = match config.strings("architectures")?.unwrap_or_default().first() {
        None => None,
        Some(class) => Some(
            Family::ALL
                .iter()
                .map(|(_, family)| *family)
                .find(|family| family.architecture() == *class)
                .ok_or_else(|| config.refuse("architectures", known()))?,
        ),
    };
    match (by_type, by_class) {
        (Some(a), Some(b)) if a != b => Err(config.refuse(
            "architectures",
            format_args!("it contradicts `model_type`, \"{}\"", a.model_type()),
        )),
        (Some(family), _) | (None, Some(family)) => Ok(family),
        (None, None) => Err(config.error(format!(
            "neither `model_type` nor `architectures` says what the model is: {}",
            known()
        ))),
    }
}

fn head_dim(
    config: &Keys,
    hidden_size: usize,
    heads: usize,
    default: Option<usize>,
) -> Result<usize> {
    let (head_dim, origin) = match config.size("head_dim", limit::HEAD_DIM)?.or(default) {
        Some(head_dim) => (head_dim, "`head_dim`"),
        None if hidden_size.is_multiple_of(heads) => {
            (hidden_size / heads, "`hidden_size` / `num_attention_heads`")
        }
        None => {
            return Err(config.error(format!(
                "`hidden_size` is {hidden_size}: without `head_dim` it must be a multiple of \
                 `num_attention_heads`, {heads}"
            )));
        }
    };
    if !head_dim.is_multiple_of(2) {
        return Err(config
            .error(format!("{origin} is {head_dim}: rotary embeddings need an even head width")));
    }
    Ok(head_dim)
}

/// Base and scaling of the rotary frequencies, from `rope_scaling` (older; it wins when both are
/// there) or `rope_parameters` (newer).
fn rope(config: &Keys, max_position_embeddings: usize) -> Result<(f64, RopeScaling)> {
    let partial = |keys: &Keys| match keys.positive("partial_rotary_factor")? {
        None | Some(1.0) => Ok(()),
        Some(_) => Err(keys.refuse("partial_rotary_factor", "supported is 1.0")),
    };
    partial(config)?;
    let outer_theta = config.positive("rope_theta")?;
    let empty = Map::new();
    let mut keys = Keys { path: config.path, prefix: "", map: &empty };
    for (key, prefix) in
        [("rope_parameters", "rope_parameters."), ("rope_scaling", "rope_scaling.")]
    {
        if let Some(map) = config.object(key)?.filter(|map| !map.is_empty()) {
            keys = Keys { path: config.path, prefix, map };
        }
    }
    if let Some((layer_type, _)) = keys.map.iter().find(|(_, value)| value.is_object()) {
        return Err(keys
            .refuse(layer_type, "rotary parameters that differ between layers are not supported"));
    }
    partial(&keys)?;
    let theta = keys.positive("rope_theta")?.or(outer_theta).unwrap_or(10_000.0);

    let required = |key| {
        keys.positive(key)?.ok_or_else(|| keys.refuse(key, "this rope type needs a number here"))
    };
    let type_key = if keys.value("rope_type").is_some() { "rope_type" } else { "type" };
    let scaling = match keys.string(type_key)? {
        None | Some("default") => RopeScaling::None,
        Some("linear") => RopeScaling::Linear { factor: required("factor")? },
        Some("llama3") => {
            let low_freq_factor = required("low_freq_factor")?;
            let high_freq_factor = required("high_freq_factor")?;
            if high_freq_factor <= low_freq_factor {
                return Err(keys.refuse(
                    "high_freq_factor",
                    format_args!("it must be above `low_freq_factor`, {low_freq_factor}"),
                ));
            }
            RopeScaling::Llama3 {
                factor: required("factor")?,
                low_freq_factor,
                high_freq_factor,
                original_max_position_embeddings: keys
                    .size("original_max_position_embeddings", limit::POSITIONS)?
                    .unwrap_or(max_position_embeddings),
            }
        }
        Some(_) => {
            return Err(keys.refuse(type_key, "supported are \"default\", \"linear\", \"llama3\""));
        }
    };
    Ok((theta, scaling))
}

/// For each layer the width of its attention window.
fn sliding_window(
    config: &Keys,
    family: Family,
    layers: usize,
    max_position_embeddings: usize,
) -> Result<Vec<Option<usize>>> {
    if family == Family::Llama {
        return Ok(vec![None; layers]);
    }
    let qwen = family != Family::Mistral;
    let enabled = !qwen || config.boolean("use_sliding_window")?.unwrap_or(false);
    let window = match config.size("sliding_window", usize::MAX)? {
        _ if !enabled => None,
        None if config.map.contains_key("sliding_window") => None,
        window => Some(window.unwrap_or(4096)),
    };
    let first = match config.value("max_window_layers") {
        // Zero is a meaningful value: every layer slides.
        Some(value) if qwen && value.as_u64() == Some(0) => 0,
        Some(_) if qwen => config.size("max_window_layers", usize::MAX)?.unwrap_or(28),
        _ if qwen => 28,
        _ => 0,
    };
    let mut windows: Vec<_> = (0..layers).map(|i| window.filter(|_| i >= first)).collect();

    if let Some(types) = config.strings("layer_types")? {
        if types.len() != layers {
            return Err(config.error(format!(
                "`layer_types` has {} entries for {layers} layers (`num_hidden_layers`)",
                types.len()
            )));
        }
        for (slot, layer_type) in windows.iter_mut().zip(&types) {
            let wanted = match *layer_type {
                "full_attention" => None,
                "sliding_attention" if window.is_some() => window,
                "sliding_attention" => {
                    return Err(config.refuse(
                        "layer_types",
                        "\"sliding_attention\" needs `sliding_window` (and, for Qwen, \
                         `use_sliding_window`)",
                    ));
                }
                _ => {
                    return Err(config.refuse(
                        "layer_types",
                        "supported are \"full_attention\" and \"sliding_attention\"",
                    ));
                }
            };
            // Transformers ignores the key for this family, so a mixture has no reference.
            if !qwen && wanted != window {
                return Err(config.refuse(
                    "layer_types",
                    "Mistral's layers are all alike; it must agree with `sliding_window`",
                ));
            }
            *slot = wanted;
        }
    }
    for slot in &mut windows {
        *slot = slot.filter(|window| *window < max_position_embeddings);
    }
    Ok(windows)
}

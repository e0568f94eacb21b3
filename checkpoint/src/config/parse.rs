//! From JSON to [`ModelConfig`], with Hugging Face's defaults where a key is absent.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::{Map, Value};

use super::{ModelConfig, Sampling};
use crate::architecture::{Attention, FeedForward, Layer, RopeScaling};
use crate::encodings::Quantisation;
use crate::families::{Family, Sizes};
use crate::gguf;
use crate::keys::{Keys, read_object};
use crate::{Error, Result};

/// Models that read images too: their text model has a configuration of its own within. And whether their output
/// projection is the embedding where the whole does not say it.
const WITH_IMAGES: [(&str, bool); 9] = [
    ("gemma3", true),
    ("gemma4", true),
    ("gemma4_unified", true),
    ("mistral3", true),
    ("qwen2_5_vl", false),
    ("qwen2_vl", false),
    ("qwen3_5", false),
    ("qwen3_5_moe", false),
    ("qwen3_vl", false),
];

impl ModelConfig {
    /// Reads what `model` says of itself: `config.json` and, if there is one,
    /// `generation_config.json` of a folder in Hugging Face layout, or the keys of a GGUF file, which
    /// `model` is or has.
    ///
    /// Absent keys of `config.json` take the defaults of the family's configuration class in Hugging
    /// Face transformers. Both the older form (`rope_theta`, `rope_scaling`) and the newer one
    /// (`rope_parameters`) are understood.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] names the file, the key, its value and what is supported;
    /// [`Error::Io`] when a file cannot be read; of GGUF files also what
    /// [`Checkpoint::open`](crate::Checkpoint::open) says.
    pub fn from_dir(model: &Path) -> Result<Self> {
        if let Some(set) = gguf::Set::find(model)? {
            return of_gguf(&set);
        }
        let path = model.join("config.json");
        let Some(mut config) = read_object(&path)? else {
            let message = if model.is_dir() {
                "not found: a model folder holds config.json, *.safetensors and tokenizer.json \
                 (Hugging Face layout), or a GGUF file"
            } else {
                "the folder does not exist: check the model's path"
            };
            return Err(Error::Config { path, message: message.into() });
        };
        if let Some(renamed) = renamed(&config) {
            config = renamed;
        }
        let generation_path = model.join("generation_config.json");
        let generation = read_object(&generation_path)?.unwrap_or_default();
        let outer = Keys { path: &path, prefix: "", map: &config, names: None };
        let generation = Keys { path: &generation_path, prefix: "", map: &generation, names: None };
        if outer.string("model_type")?.is_some_and(|it| with_images(it).is_some())
            && let Some(map) = outer.object("text_config")?
        {
            return parse(&Keys { prefix: "text_config.", map, ..outer }, &outer, &generation);
        }
        parse(&outer, &outer, &generation)
    }

    /// Of `config.json` and `generation_config.json` that were made of `model`.
    pub(crate) fn from_objects(
        model: &Path,
        config: &Map<String, Value>,
        generation: &Map<String, Value>,
    ) -> Result<Self> {
        let keys = |map| Keys { path: model, prefix: "", map, names: None };
        let renamed = renamed(config);
        let config = keys(renamed.as_ref().unwrap_or(config));
        parse(&config, &config, &keys(generation))
    }
}

/// Other types that models have said, with the keys of these: that of a whole that reads images too, or of its text model, and
/// one that came with code of its own.
const ALSO: [(&str, &str); 9] = [
    ("qwen2_5_vl", "qwen2"),
    ("qwen2_5_vl_text", "qwen2"),
    ("qwen2_vl", "qwen2"),
    ("qwen2_vl_text", "qwen2"),
    ("qwen3_vl_text", "qwen3"),
    ("qwen3_5", "qwen3_5_text"),
    ("qwen3_5_moe", "qwen3_5_moe_text"),
    ("kimi_k2", "deepseek_v3"),
    (BOTH_WAYS, "llama"),
];

/// Llama as NVIDIA's models of vectors have it, whose own code sees both ways whatever is said.
pub(crate) const BOTH_WAYS: &str = "llama_bidirec";

/// Keys of a family that others have under other names: its own first.
const KEYS: [(&str, &[(&str, &str)]); 2] = [
    (
        "distilbert",
        &[
            ("dim", "hidden_size"),
            ("hidden_dim", "intermediate_size"),
            ("n_layers", "num_hidden_layers"),
            ("n_heads", "num_attention_heads"),
        ],
    ),
    (
        "nomic_bert",
        &[
            ("n_embd", "hidden_size"),
            ("n_inner", "intermediate_size"),
            ("n_layer", "num_hidden_layers"),
            ("n_head", "num_attention_heads"),
            // `n_positions` is more than it was trained with.
            ("max_trained_positions", "max_position_embeddings"),
            ("layer_norm_epsilon", "layer_norm_eps"),
            ("rotary_emb_base", "rope_theta"),
        ],
    ),
];

/// The keys of `config` under the names that others have for them, where its family has its own.
fn renamed(config: &Map<String, Value>) -> Option<Map<String, Value>> {
    let model_type = config.get("model_type")?.as_str()?;
    let (_, names) = KEYS.iter().find(|(family, _)| *family == model_type)?;
    let mut renamed = config.clone();
    for (own, others) in *names {
        if let Some(value) = renamed.get(*own).cloned() {
            renamed.insert((*others).into(), value);
        }
    }
    Some(renamed)
}

/// What [`WITH_IMAGES`] says of `model_type`.
fn with_images(model_type: &str) -> Option<bool> {
    WITH_IMAGES.into_iter().find(|(name, _)| *name == model_type).map(|(_, tied)| tied)
}

fn of_gguf(set: &gguf::Set) -> Result<ModelConfig> {
    let gguf::HuggingFace { config, names, rope_factors } = gguf::hugging_face(set)?;
    let (path, names) = (&set.source, Some(&names));
    let config = Keys { path, prefix: "", map: &config, names };
    let mut config = parse(&config, &config, &config)?;
    let Some(factors) = rope_factors else { return Ok(config) };
    let wrong = |message: String| Error::Checkpoint { path: path.clone(), message };
    let rope = &mut config.architecture.ropes[0];
    if factors.len() != rope.width / 2 {
        return Err(wrong(format!(
            "tensor `rope_freqs.weight` has {} divisors, but heads of {} have {} frequencies",
            factors.len(),
            rope.width,
            rope.width / 2
        )));
    }
    if rope.scaling != RopeScaling::None {
        return Err(wrong(
            "it has both a scaling of rotary frequencies (`rope.scaling.type`) and divisors of them \
             (tensor `rope_freqs.weight`), which is not supported"
                .into(),
        ));
    }
    rope.scaling = RopeScaling::Divided(factors);
    Ok(config)
}

/// `outer` is the whole of `config.json`, of which `config` may be a part.
fn parse(config: &Keys, outer: &Keys, generation: &Keys) -> Result<ModelConfig> {
    let family = family(config)?;
    let defaults = &family.defaults;
    // Refused here already, before any file of weights is there.
    Quantisation::read(config)?;
    Quantisation::read(outer)?;
    let sizes = Sizes::read(config, defaults)?;
    let mut architecture = (family.architecture)(config, &sizes)?;
    let both_ways = config.string("model_type")? == Some(BOTH_WAYS);
    if both_ways || config.boolean("is_causal")? == Some(false) {
        // Encoders of their own families say it of themselves.
        let of_encoder = |it: &Attention| it.both_ways || it.window.is_none();
        let fits = |layer: &Layer| layer.attention().is_some_and(of_encoder);
        if !architecture.layers.iter().all(fits) {
            let must =
                "tokens see the ones behind them in layers of attention without a window only";
            return Err(config.refuse("is_causal", must));
        }
        architecture = architecture.into_encoder();
    }

    if config.boolean(gguf::RANKS)? == Some(true) {
        (architecture.output, architecture.output_bias) = (None, None);
    }

    // A family may take a size from elsewhere than the key that all have, which says another then.
    if let Some(attention) =
        architecture.layers.iter().filter_map(Layer::attention).find(|it| !it.fits())
    {
        return Err(config.error(format!(
            "`head_dim` and `num_key_value_heads` make {} heads of {} for {} query heads, which are not those of this family's \
             projections: leave these keys out",
            attention.kv_heads, attention.head_dim, attention.heads
        )));
    }

    let ids = |key, default: &[u32]| -> Result<Vec<u32>> {
        let mut ids = None;
        // As transformers does: what is outside of the text model's part wins.
        for keys in [generation, outer, config] {
            if ids.is_none() {
                ids = keys.token_ids(key)?;
            }
        }
        // An explicit null of the text model's part is none.
        let null = config.map.contains_key(key);
        let mut ids = ids.unwrap_or_else(|| if null { Vec::new() } else { default.to_vec() });
        ids.retain(|id| (*id as usize) < sizes.vocab_size);
        Ok(ids)
    };

    let suppress_tokens = ids("suppress_tokens", &[])?;
    if suppress_tokens.iter().collect::<BTreeSet<_>>().len() == sizes.vocab_size {
        let key = "suppress_tokens";
        let keys = [generation, outer, config].into_iter().find(|keys| keys.value(key).is_some());
        return Err(keys.unwrap_or(config).refuse(key, "no token is left that may come"));
    }

    // As transformers does: of a model that reads images too, the whole says it.
    let default = match outer.string("model_type")?.and_then(with_images) {
        Some(tied) if !std::ptr::eq(outer.map, config.map) => tied,
        _ => defaults.tie_word_embeddings,
    };
    // LFM2's older name of it wins.
    let tied = match outer.boolean("tie_embedding")? {
        Some(tied) => Some(tied),
        None => outer.boolean("tie_word_embeddings")?,
    };
    // Files of these from before transformers 5 said it within.
    let within = matches!(outer.string("model_type")?, Some("qwen2_vl" | "qwen2_5_vl"))
        && config.boolean("tie_word_embeddings")? == Some(true);
    let tied = within || tied.unwrap_or(default);
    // A family may make another width of the key.
    let intermediate_size = match architecture.layers.first().map(|layer| &layer.mlp) {
        Some(FeedForward::Mlp(mlp)) => mlp.down.inputs(),
        _ => sizes.intermediate_size,
    };

    // So may one of the width of heads.
    let attention = architecture.layers.iter().find_map(Layer::attention);
    let head_dim = attention.map_or(sizes.head_dim, |attention| attention.head_dim);

    Ok(ModelConfig {
        family,
        vocab_size: sizes.vocab_size,
        hidden_size: sizes.hidden_size,
        intermediate_size,
        num_hidden_layers: sizes.layers,
        num_attention_heads: sizes.heads,
        num_key_value_heads: sizes.kv_heads,
        head_dim,
        // A family may take another key.
        max_position_embeddings: architecture.ropes[0].positions,
        longest_context: architecture.ropes[0].positions,
        rms_norm_eps: architecture.norm.epsilon,
        tie_word_embeddings: tied,
        architecture,
        eos_token_ids: ids("eos_token_id", defaults.eos_token_ids)?,
        bos_token_id: ids("bos_token_id", defaults.bos_token_id.as_slice())?.first().copied(),
        suppress_tokens,
        sampling: sampling(generation),
    })
}

/// As servers that take it do: of use where it makes sense, and no reason to have no model.
fn sampling(generation: &Keys) -> Sampling {
    let number = |key, least, most| {
        let number = generation.value(key)?.as_f64()? as f32;
        (least..=most).contains(&number).then_some(number)
    };
    let top_k = generation.value("top_k").and_then(serde_json::Value::as_u64);
    Sampling {
        temperature: number("temperature", 0.0, 100.0),
        top_k: top_k.and_then(|it| usize::try_from(it).ok()),
        top_p: number("top_p", f32::MIN_POSITIVE, 1.0),
        min_p: number("min_p", 0.0, 1.0),
        repetition_penalty: number("repetition_penalty", 0.01, 100.0),
    }
}

fn family(config: &Keys) -> Result<&'static Family> {
    let known = || {
        let names: Vec<_> = Family::ALL.iter().map(|family| family.class()).collect();
        format!("supported are {}", names.join(", "))
    };
    let find = |key, is: &dyn Fn(&Family) -> bool| {
        let found = Family::ALL.into_iter().find(|family| is(family));
        found.ok_or_else(|| config.refuse(key, known()))
    };
    let by_type = match config.string("model_type")? {
        None => None,
        Some(name) => {
            if let Some((_, known)) = ALSO.iter().find(|(said, _)| *said == name) {
                // Its class may be that of the whole, too.
                return find("model_type", &|family| family.model_type() == *known);
            }
            Some(find("model_type", &|family| family.model_type() == name)?)
        }
    };
    let by_class = match config.strings("architectures")?.unwrap_or_default().first() {
        None => None,
        Some(class) => Some(find("architectures", &|family| family.has_class(class))?),
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

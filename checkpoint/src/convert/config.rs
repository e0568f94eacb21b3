//! What `config.json` and `generation_config.json` of a converted model say.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::Float;
use crate::architecture::{Rope, RopeScaling};
use crate::config::{BOTH_WAYS, ModelConfig};
use crate::keys::read_object;
use crate::{Error, Result, gguf};

type Object = Map<String, Value>;

/// Both files.
#[derive(Debug)]
pub(super) struct Described {
    pub config: Object,
    pub generation: Object,
}

/// Keys that may be outside of a text model's own object where there are images too; they win there.
const TOKENS: [&str; 3] = ["bos_token_id", "eos_token_id", "pad_token_id"];

impl Described {
    /// What `model`, which is `source`, says of itself, without quantisation.
    pub fn read(model: &Path, source: &ModelConfig, dtype: Float) -> Result<Self> {
        let Self { mut config, generation } = match gguf::Set::find(model)? {
            Some(set) => Self::of_gguf(&set, source)?,
            None => Self::of_folder(model)?,
        };
        // Code for a model is left where it was; every family has its own class.
        for key in ["auto_map", "quantization", "quantization_config", "compression_config"] {
            config.remove(key);
        }
        of_text_alone(&mut config);
        // The older name, which all versions of transformers read.
        config.remove("dtype");
        config.insert("torch_dtype".into(), json!(dtype.torch()));
        let class = source.family.class();
        let said = config.get("architectures").and_then(|it| it[0].as_str()).unwrap_or(class);
        let around =
            ["ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"];
        if around.iter().any(|it| said.ends_with(it)) {
            let message = format!("{said}: what is behind the encoder would be lost");
            return Err(Error::Config { path: model.into(), message });
        }
        if !source.architecture.makes_tokens() && !source.architecture.is_encoder() {
            let message = "it ranks by `cls.output`, which would be lost".into();
            return Err(Error::Config { path: model.into(), message });
        }
        if config.get("model_type").and_then(Value::as_str) == Some(BOTH_WAYS) {
            config.insert("is_causal".into(), json!(false));
        }
        // A decoder that sees both ways has no output projection, as its class says.
        let class = match class.strip_suffix("ForCausalLM") {
            Some("Gemma3") if source.architecture.is_encoder() => "Gemma3TextModel".to_owned(),
            Some(stem) if source.architecture.is_encoder() => format!("{stem}Model"),
            _ => class.to_owned(),
        };
        config.insert("architectures".into(), json!([class]));
        config.insert("model_type".into(), json!(source.family.model_type()));
        config.insert("tie_word_embeddings".into(), json!(source.tie_word_embeddings));
        Ok(Self { config, generation })
    }

    /// What the engine makes of them.
    pub fn parse(&self, model: &Path) -> Result<ModelConfig> {
        ModelConfig::from_objects(model, &self.config, &self.generation)
    }

    fn of_folder(folder: &Path) -> Result<Self> {
        let mut config = read_object(&folder.join("config.json"))?.unwrap_or_default();
        if let Some(Value::Object(mut text)) = config.remove("text_config") {
            for key in TOKENS {
                if let Some(value) = config.get(key).filter(|value| !value.is_null()) {
                    text.insert(key.into(), value.clone());
                }
            }
            config = text;
        }
        let generation = read_object(&folder.join("generation_config.json"))?.unwrap_or_default();
        Ok(Self { config, generation })
    }

    fn of_gguf(set: &gguf::Set, source: &ModelConfig) -> Result<Self> {
        let gguf::HuggingFace { mut config, .. } = gguf::hugging_face(set)?;
        for key in [gguf::NORMS_ARE_WHOLE, gguf::RANKS, gguf::VALUE_HEADS_ARE_TILED] {
            config.remove(key);
        }
        let rope = source.rope();
        if let RopeScaling::Divided(by) = &rope.scaling
            && !config.contains_key("rope_parameters")
        {
            let scaling = llama3(rope, by).unwrap_or_else(|| divided(rope, by));
            config.insert("rope_scaling".into(), scaling);
        }
        let padding = set.metadata.unsigned("tokenizer.ggml.padding_token_id");
        config.insert("pad_token_id".into(), json!(padding));
        let generation = TOKENS.iter().filter_map(|&key| {
            let value = config.get(key).filter(|value| !value.is_null())?;
            Some((key.to_owned(), value.clone()))
        });
        let mut generation: Object = generation.collect();
        // Of no model's configuration.
        for key in gguf::SAMPLING.map(|(key, _)| key).into_iter().chain(["suppress_tokens"]) {
            generation.extend(config.remove_entry(key));
        }
        // Without it transformers takes the likeliest token, whatever else is said.
        let greedy = generation.get("temperature").is_some_and(|it| it.as_f64() == Some(0.0));
        let chance = ["temperature", "top_k", "top_p", "min_p"];
        if !greedy && chance.iter().any(|key| generation.contains_key(*key)) {
            generation.insert("do_sample".into(), json!(true));
        }
        Ok(Self { config, generation })
    }
}

/// Leaves out what a model that reads images says of them: what reads them, their marks, and positions of three axes.
fn of_text_alone(config: &mut Object) {
    config.remove("vision_config");
    for name in ["image", "video", "vision_start", "vision_end", "vision"] {
        config.remove(&format!("{name}_token_id"));
    }
    for key in ["rope_scaling", "rope_parameters"] {
        let Some(Value::Object(rope)) = config.get_mut(key) else { continue };
        rope.retain(|key, _| !key.starts_with("mrope_"));
        let mrope = rope.iter_mut().filter(|(_, value)| **value == "mrope");
        mrope.for_each(|(_, kind)| *kind = "default".into());
    }
}

/// What all of Llama's models that are scaled were trained with at first, in tokens.
const ORIGINAL: usize = 8192;

/// Llama 3.1's scaling whose divisors are `by`, as config.json says it.
fn llama3(rope: &Rope, by: &[f32]) -> Option<Value> {
    let factor = f64::from(by.iter().copied().fold(1.0, f32::max));
    let (low_freq_factor, high_freq_factor) = (1.0, 4.0);
    let scaling = RopeScaling::Llama3 {
        factor,
        low_freq_factor,
        high_freq_factor,
        original_max_position_embeddings: ORIGINAL,
    };
    let meant = Rope { scaling, ..rope.clone() }.inv_freq();
    let close = |(meant, said): (&f32, f32)| (meant - said).abs() <= 1e-5 * said;
    meant.iter().zip(rope.inv_freq()).all(close).then(|| {
        json!({
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": low_freq_factor,
            "high_freq_factor": high_freq_factor,
            "original_max_position_embeddings": ORIGINAL,
        })
    })
}

/// Divisors of any other scaling, as config.json says them: for all contexts the same.
fn divided(rope: &Rope, by: &[f32]) -> Value {
    json!({
        "rope_type": "longrope",
        "short_factor": by,
        "long_factor": by,
        "attention_factor": 1.0,
        "original_max_position_embeddings": rope.positions,
    })
}

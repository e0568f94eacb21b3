//! A file's keys as `config.json` would have them.

use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom};

use serde_json::{Map, Value as Json, json};

use super::architectures::Architecture;
use super::ends::end_ids;
use super::metadata::{Metadata, Value};
use super::names::hugging_face_name;
use super::set::Set;
use crate::header::Entry;
use crate::{Dtype, Error, Result};

/// A key of a configuration that only this program makes: norms are the file's weights alone, to which
/// its converter has added what the family adds.
pub(crate) const NORMS_ARE_WHOLE: &str = "norms_are_whole";

/// Another one: the value heads of linear attention that meet one key head lie as far apart as there are key
/// heads.
pub(crate) const VALUE_HEADS_ARE_TILED: &str = "value_heads_are_tiled";

/// Another one: what ranks is in the place of the output projection.
pub(crate) const RANKS: &str = "output_ranks";

/// Divisors of the rotary frequencies, one for each: Llama 3.1's scaling comes so.
const ROPE_FACTORS: &str = "rope_freqs.weight";

/// How answers are sampled: keys of `generation_config.json`, and what these files call them.
pub(crate) const SAMPLING: [(&str, &str); 5] = [
    ("temperature", "temp"),
    ("top_k", "top_k"),
    ("top_p", "top_p"),
    ("min_p", "min_p"),
    ("repetition_penalty", "penalty_repeat"),
];

/// How many of the layers, the last ones, guess further tokens.
const GUESSING: &str = "nextn_predict_layers";

/// A configuration under Hugging Face's names.
pub(crate) struct HuggingFace {
    pub config: Map<String, Json>,
    /// The key of the file that each key of the configuration comes from.
    pub names: BTreeMap<String, String>,
    pub rope_factors: Option<Vec<f32>>,
}

/// What `set` says, for the parser of `config.json`.
pub(crate) fn hugging_face(set: &Set) -> Result<HuggingFace> {
    let wrong = |message: String| Error::Config { path: set.source.clone(), message };
    let metadata = &set.metadata;
    let name = metadata
        .text("general.architecture")
        .ok_or_else(|| wrong("`general.architecture` is missing: the file is damaged".into()))?;
    let Some(own) = Architecture::find(name) else {
        return Err(wrong(format!(
            "architecture `{name}` (`general.architecture`) is not supported; supported are {}",
            Architecture::names()
        )));
    };
    let architecture = own.name;
    let (config, names) = (Map::new(), BTreeMap::new());
    let mut keys = Keys { metadata, set, architecture, config, names };
    keys.put("model_type", "general.architecture", Some(json!(own.model_type)));

    for (ours, theirs) in [
        ("hidden_size", "embedding_length"),
        ("num_hidden_layers", "block_count"),
        ("num_attention_heads", "attention.head_count"),
        ("max_position_embeddings", "context_length"),
    ] {
        keys.required(ours, theirs).map_err(wrong)?;
    }
    // Files of models that have experts alone need not have it.
    let wide = ["feed_forward_length", "expert_feed_forward_length"];
    let wide = wide.into_iter().find(|key| keys.own(key).is_some()).unwrap_or(wide[0]);
    keys.required("intermediate_size", wide).map_err(wrong)?;
    keys.required(own.epsilon.0, own.epsilon.1).map_err(wrong)?;
    let heads = keys.config["num_attention_heads"].clone();
    if !keys.copy("num_key_value_heads", "attention.head_count_kv") {
        keys.put("num_key_value_heads", "attention.head_count", Some(heads.clone()));
    }
    let key_length = keys.own("attention.key_length");
    if let (Some(key), Some(value)) = (&key_length, keys.own("attention.value_length"))
        && *key != value
        // Latent attention says its widths under keys of its own.
        && keys.own("attention.kv_lora_rank").is_none()
    {
        return Err(wrong(format!(
            "`{architecture}.attention.key_length` is {key} and \
             `{architecture}.attention.value_length` {value}: keys and values of different widths \
             are not supported"
        )));
    }
    let width = keys.config["hidden_size"].as_u64();
    let evenly = width.zip(heads.as_u64()).and_then(|(width, heads)| {
        let head = width.checked_div(heads)?;
        (head * heads == width).then_some(head)
    });
    let head_dim = key_length.or(evenly.map(Json::from));
    if let Some(head_dim) = head_dim {
        keys.put("head_dim", "attention.key_length", Some(head_dim));
    }
    if !keys.copy("rope_theta", "rope.freq_base") {
        keys.put("rope_theta", "rope.freq_base", Some(json!(10_000.0)));
    }
    keys.leave_out_guessing().map_err(wrong)?;
    keys.scaling().map_err(wrong)?;
    // Not every layer has each part.
    let has = |part: &str| {
        let mut all = set.files.iter().flat_map(|file| &file.tensors);
        Json::from(all.any(|(name, _)| name.starts_with("model.layers.") && name.ends_with(part)))
    };
    keys.put_named("attention_bias", "blk.0.attn_q.bias", has(".self_attn.q_proj.bias"));
    keys.put_named("mlp_bias", "blk.0.ffn_up.bias", has(".mlp.up_proj.bias"));
    keys.copy("is_causal", "attention.causal");
    (own.keys)(&mut keys).map_err(wrong)?;
    if let Some(experts) = metadata.unsigned(&format!("{architecture}.expert_count"))
        && experts > 0
        && !keys.config.contains_key("num_experts_per_tok")
    {
        return Err(wrong(format!(
            "`{architecture}.expert_count` is {experts}: experts of this architecture are not supported"
        )));
    }
    if let (Some(rotated), Some(head_dim), false) = (
        keys.own("rope.dimension_count").and_then(|it| it.as_u64()),
        ["global_head_dim", "head_dim"].iter().find_map(|key| keys.config.get(*key)?.as_u64()),
        keys.config.contains_key("partial_rotary_factor"),
    ) && rotated != head_dim
    {
        return Err(wrong(format!(
            "`{architecture}.rope.dimension_count` is {rotated}, but a head has {head_dim} \
             dimensions: this architecture rotates all of them"
        )));
    }

    let tensor = |name| tensor(set, name);
    let tokens = "tokenizer.ggml.tokens";
    let embedding = hugging_face_name("token_embd.weight", own);
    let vocabulary = match embedding.and_then(|name| keys.rows(&name)) {
        Some(rows) => Some(rows),
        None => metadata.texts(tokens).map(|texts| texts.len()),
    };
    keys.put_named("vocab_size", tokens, Json::from(vocabulary));
    if tensor("lm_head.weight").is_none() && tensor("cls.output.weight").is_some() {
        let labels = metadata.texts(&format!("{architecture}.classifier.output_labels"));
        if !labels.is_some_and(|it| it.iter().eq(["yes", "no"])) {
            return Err(wrong(format!(
                "it has `cls.output.weight` in place of `output.weight`, and `{architecture}.classifier.output_labels` is not \
                 \"yes\" and \"no\": what ranks otherwise is not supported"
            )));
        }
        keys.config.insert(RANKS.into(), json!(true));
    }
    keys.put_named(
        "tie_word_embeddings",
        "output.weight",
        Json::from(tensor("lm_head.weight").is_none()),
    );

    let bos = "tokenizer.ggml.bos_token_id";
    keys.put_named("bos_token_id", bos, metadata.get(bos).map(json_of).unwrap_or_default());
    let ends = Json::from(end_ids(metadata));
    keys.put_named("eos_token_id", "tokenizer.ggml.eos_token_id", ends);

    let suppressed = "tokenizer.ggml.suppress_tokens";
    if let Some(value) = metadata.get(suppressed) {
        keys.put_named("suppress_tokens", suppressed, json_of(value));
    }

    for (ours, theirs) in SAMPLING {
        let theirs = format!("general.sampling.{theirs}");
        if let Some(value) = metadata.get(&theirs) {
            keys.put_named(ours, &theirs, json_of(value));
        }
    }

    let Keys { config, names, .. } = keys;
    // What has ropes of its own has taken them.
    let taken = config.contains_key("rope_parameters");
    let rope_factors = if taken { None } else { vector(set, ROPE_FACTORS)? };
    Ok(HuggingFace { config, names, rope_factors })
}

/// A configuration while it is made.
pub(super) struct Keys<'a> {
    metadata: &'a Metadata,
    set: &'a Set,
    pub architecture: &'a str,
    pub config: Map<String, Json>,
    pub names: BTreeMap<String, String>,
}

impl Keys<'_> {
    /// The value of a key of the architecture.
    pub fn own(&self, key: &str) -> Option<Json> {
        self.metadata.get(&format!("{}.{key}", self.architecture)).map(json_of)
    }

    /// Copies the value of a key of the architecture; whether there is one. Where each layer has a number and all
    /// are the same it is that number: Granite 4's heads of keys are said so.
    pub fn copy(&mut self, ours: &str, theirs: &str) -> bool {
        let key = format!("{}.{theirs}", self.architecture);
        let of_layers = self.metadata.unsigned_of_layers(&key).map(Json::from);
        let value = of_layers.or_else(|| self.own(theirs));
        let there = value.is_some();
        self.put(ours, theirs, value);
        there
    }

    /// Copies the window of attention; whether there is one. 0 is none, as the converter writes it of Phi-4.
    pub fn copy_window(&mut self) -> bool {
        const KEY: &str = "attention.sliding_window";
        let value = self.own(KEY);
        let there = value.as_ref().is_some_and(|window| *window != 0);
        self.put("sliding_window", KEY, value.map(|it| if there { it } else { Json::Null }));
        there
    }

    /// Copies the value of a key of the architecture, or says that there is none.
    pub fn required(&mut self, ours: &str, theirs: &str) -> Result<(), String> {
        match self.copy(ours, theirs) {
            true => Ok(()),
            false => Err(format!(
                "`{}.{theirs}` is missing: the file is damaged; convert the model again",
                self.architecture
            )),
        }
    }

    pub fn put(&mut self, ours: &str, theirs: &str, value: Option<Json>) {
        let Some(value) = value else { return };
        let name = match theirs {
            "general.architecture" => theirs.to_owned(),
            key => format!("{}.{key}", self.architecture),
        };
        self.put_named(ours, &name, value);
    }

    /// `value` as `ours`, which the file says in what it calls `theirs`.
    pub fn put_named(&mut self, ours: &str, theirs: &str, value: Json) {
        self.names.insert(ours.to_owned(), theirs.to_owned());
        self.config.insert(ours.to_owned(), value);
    }

    /// Whether there is a tensor that Hugging Face calls `name`.
    pub fn has(&self, name: &str) -> bool {
        self.rows(name).is_some()
    }

    /// Rows of the tensor that Hugging Face calls `name`, if there is one.
    pub fn rows(&self, name: &str) -> Option<usize> {
        tensor(self.set, name)?.shape.first().copied()
    }

    /// The small vector of f32 called `tensor`; `None` where there is none.
    pub fn vector(&self, tensor: &str) -> Result<Option<Vec<f32>>, String> {
        vector(self.set, tensor).map_err(|error| error.to_string())
    }

    /// Takes layers that guess further tokens off the number of layers; nobody asks for their tensors then.
    fn leave_out_guessing(&mut self) -> Result<(), String> {
        let number = |it: Option<Json>| it.as_ref().and_then(Json::as_u64).unwrap_or(0);
        let (all, guessing) = (number(self.own("block_count")), number(self.own(GUESSING)));
        if guessing == 0 {
            return Ok(());
        }
        if guessing >= all {
            return Err(format!(
                "`{0}.{GUESSING}` is {guessing} of {all} layers (`{0}.block_count`): the file is of no whole \
                 model",
                self.architecture
            ));
        }
        self.put("num_hidden_layers", "block_count", Some(json!(all - guessing)));
        Ok(())
    }

    /// How much of each head is rotated.
    pub fn partial_rotation(&mut self) {
        let rotated = self.own("rope.dimension_count").and_then(|it| it.as_f64());
        let head_dim = self.config.get("head_dim").and_then(Json::as_f64);
        let factor = rotated.zip(head_dim).map_or(1.0, |(rotated, head_dim)| rotated / head_dim);
        self.put("partial_rotary_factor", "rope.dimension_count", Some(json!(factor)));
    }

    /// What `rope_scaling` says.
    pub fn scaling_object(&mut self) -> &mut Map<String, Json> {
        let scaling = self.config.entry("rope_scaling").or_insert_with(|| json!({}));
        scaling.as_object_mut().expect("only made here")
    }

    /// `rope_scaling`, or the one factor of older files.
    fn scaling(&mut self) -> Result<(), String> {
        let factor = self.own("rope.scaling.factor");
        let older = self.own("rope.scale_linear").filter(|factor| factor.as_f64() != Some(1.0));
        let (kind, factor) = match (self.own("rope.scaling.type"), factor, older) {
            (None, None, Some(older)) => (json!("linear"), Some(older)),
            (Some(kind), factor, _) if kind == "none" => (json!("default"), factor),
            (Some(kind), factor, _) => (kind, factor),
            // llama.cpp's default.
            (None, Some(factor), _) if factor != 0.0 => (json!("linear"), Some(factor)),
            _ => return Ok(()),
        };
        if kind == "yarn"
            && let Some(more) = self.own("rope.scaling.attn_factor")
            && more.as_f64() != Some(1.0)
        {
            // The converter wrote what Hugging Face multiplies by into files of OLMo 3: what it is anyway.
            let factor = factor.as_ref().and_then(Json::as_f64).unwrap_or(1.0);
            let usual = 0.1 * factor.ln() + 1.0;
            if !more.as_f64().is_some_and(|more| (more - usual).abs() <= 1e-4) {
                return Err(format!(
                    "`{}.rope.scaling.attn_factor` is {more} beside \"yarn\": supported are 1 and \
                     0.1 * ln(factor) + 1, as programs differ in what it means",
                    self.architecture
                ));
            }
        }
        let mut said = vec![("rope_type", "type", Some(kind)), ("factor", "factor", factor)];
        for (ours, theirs) in [
            ("original_max_position_embeddings", "original_context_length"),
            ("beta_fast", "yarn_beta_fast"),
            ("beta_slow", "yarn_beta_slow"),
        ] {
            said.push((ours, theirs, self.own(&format!("rope.scaling.{theirs}"))));
        }
        for (ours, theirs, value) in said {
            let Some(value) = value else { continue };
            self.scaling_object().insert(ours.into(), value);
            let theirs = format!("{}.rope.scaling.{theirs}", self.architecture);
            self.names.insert(format!("rope_scaling.{ours}"), theirs);
        }
        Ok(())
    }
}

/// The tensor that Hugging Face calls `name`.
fn tensor<'a>(set: &'a Set, name: &str) -> Option<&'a Entry> {
    let mut all = set.files.iter().flat_map(|part| &part.tensors);
    all.find(|(it, _)| it == name).map(|(_, entry)| entry)
}

pub(super) fn json_of(value: &Value) -> Json {
    match value {
        Value::Integer(value) => match (u64::try_from(*value), i64::try_from(*value)) {
            (Ok(value), _) => json!(value),
            (_, Ok(value)) => json!(value),
            _ => Json::Null,
        },
        Value::Float(value) => json!(decimal(*value)),
        Value::Boolean(value) => json!(value),
        Value::Text(text) => json!(text),
        Value::Integers(values) => json!(values),
        Value::Floats(values) => json!(values),
        Value::Booleans(values) => json!(values),
        Value::Texts(texts) => texts.iter().collect(),
    }
}

/// The shortest decimal that single precision rounds to the same number: what `config.json` had before
/// the number was stored so.
fn decimal(value: f64) -> f64 {
    let single = value as f32;
    if f64::from(single) != value {
        return value;
    }
    single.to_string().parse().unwrap_or(value)
}

/// The small vector of positive f32 called `name`; `None` where there is none.
fn vector(set: &Set, tensor: &str) -> Result<Option<Vec<f32>>> {
    for part in &set.files {
        let Some((_, entry)) = part.tensors.iter().find(|(name, _)| name == tensor) else {
            continue;
        };
        let wrong = |message: &str| Error::Checkpoint {
            path: part.path.clone(),
            message: format!("tensor `{tensor}` {message}"),
        };
        if entry.dtype != Some(Dtype::F32) || entry.shape.len() != 1 || entry.bytes() > 1 << 20 {
            return Err(wrong("is no small vector of F32: the file is damaged"));
        }
        let mut bytes = vec![0; entry.bytes() as usize];
        let mut file = &part.file;
        file.seek(SeekFrom::Start(entry.start))
            .and_then(|_| file.read_exact(&mut bytes))
            .map_err(|e| Error::shortened(&part.path, e))?;
        let factors: Vec<f32> =
            bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        if factors.iter().any(|factor| !factor.is_finite() || *factor <= 0.0) {
            return Err(wrong("has a divisor that is not above 0: the file is damaged"));
        }
        return Ok(Some(factors));
    }
    Ok(None)
}

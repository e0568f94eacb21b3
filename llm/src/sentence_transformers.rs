//! How an embedding model makes one vector of the hidden states of a text, as its folder says it in the
//! layout of sentence-transformers (`modules.json`, the pooling's `config.json` and
//! `config_sentence_transformers.json`), or its GGUF file.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use xla_session::Pooling;
use xla_session::checkpoint::gguf::Metadata;
use xla_session::checkpoint::{Checkpoint, LoadMode};
use xla_session::config::ModelConfig;

use crate::dense::{Activation, Dense};
use crate::files::is_absent;
use crate::ranking;

/// What lists the modules.
pub const MODULES: &str = "modules.json";
/// What says how it pools.
pub const POOLING: &str = "1_Pooling/config.json";
/// What has the prompts.
pub const PROMPTS: &str = "config_sentence_transformers.json";
/// What says how texts become tokens.
pub const TRANSFORMER: &str = "sentence_bert_config.json";

/// The names that poolings have in flags.
pub const NAMES: [(&str, Pooling); 3] =
    [("last", Pooling::Last), ("mean", Pooling::Mean), ("cls", Pooling::Cls)];

/// Those that they have in a folder: since version 5.4 of sentence-transformers, and before.
const MODES: [(&str, &str, Pooling); 3] = [
    ("lasttoken", "pooling_mode_lasttoken", Pooling::Last),
    ("mean", "pooling_mode_mean_tokens", Pooling::Mean),
    ("cls", "pooling_mode_cls_token", Pooling::Cls),
];

/// What a model says of its vectors.
#[derive(Debug, Clone, PartialEq)]
pub struct Said {
    /// Which hidden states they are made of.
    pub pooling: Option<Pooling>,
    /// Whether what goes before a text is pooled with it.
    pub include_prompt: bool,
    /// What pooled states go through.
    pub layers: Vec<Dense>,
    /// Most tokens of a text.
    pub most_tokens: Option<usize>,
    /// Whether its texts are of small letters.
    pub lowercase: bool,
    /// Whether they have the length 1; said where there is a list of modules.
    pub normalized: Option<bool>,
    /// What goes before texts.
    pub prompts: Prompts,
}

/// What goes before texts, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Prompts {
    prompts: BTreeMap<String, Option<String>>,
    default_prompt_name: Option<String>,
}

/// What `config.json` says that a model is.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Classes {
    architectures: Option<Vec<String>>,
    /// Code that comes with it, by the class that it is for.
    auto_map: Option<Map<String, Value>>,
    is_causal: Option<bool>,
}

impl Classes {
    /// Whether there is a layer behind it that tells classes apart, or ranks.
    pub fn is_classifier(&self) -> bool {
        let class = self.architectures.as_ref().and_then(|it| it.first());
        class.is_some_and(|it| it.ends_with("ForSequenceClassification"))
    }
}

/// What says how texts become tokens.
#[derive(Default, Deserialize)]
#[serde(default)]
struct TransformerConfig {
    modality_config: Value,
    max_seq_length: Option<usize>,
    do_lower_case: Option<bool>,
}

/// A module that hidden states go through.
#[derive(Deserialize)]
pub(crate) struct Module {
    r#type: String,
    /// Where its own files are.
    #[serde(default)]
    pub path: String,
}

/// The files that modules in `folder` may have where its list names them.
///
/// # Errors
///
/// The list is damaged.
pub fn module_files(folder: &Path) -> Result<Vec<String>> {
    let list: Vec<Module> = read(&folder.join(MODULES))?.unwrap_or_default();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let is_folder = |path: &str| {
        path.starts_with(|c: char| c.is_ascii_alphanumeric()) && path.chars().all(plain)
    };
    let paths = list.into_iter().map(|module| module.path).filter(|path| is_folder(path));
    let files = ["config.json", "model.safetensors"];
    Ok(paths.flat_map(|path| files.map(|file| format!("{path}/{file}"))).collect())
}

impl Module {
    /// Its class: what lies before the last point depends on the version.
    pub fn class(&self) -> &str {
        self.r#type.rsplit('.').next().unwrap_or_default()
    }
}

impl Said {
    /// Of the model in `folder`, which may be a GGUF file; where a pooling is `asked` for, nobody reads what
    /// the model says of it.
    ///
    /// # Errors
    ///
    /// A file that is damaged, a pooling or a module that is not one of those here, or texts that go through the chat
    /// template first.
    pub fn read(folder: &Path, asked: Option<Pooling>) -> Result<Self> {
        let metadata = Metadata::of_model(folder)?;
        let classes: Classes = read(&folder.join("config.json"))?.unwrap_or_default();
        if classes.is_classifier() || ranking::is_classifier_file(folder, metadata.as_ref())? {
            bail!("{}: it ranks or classifies texts, and has no vectors", folder.display());
        }
        let encodes = || ModelConfig::from_dir(folder).is_ok_and(|it| it.architecture.is_encoder());
        let own_code = classes.auto_map.is_some_and(|it| it.contains_key("AutoModel"));
        // A decoder that was made for vectors, which may see both ways in its own code.
        if own_code && classes.is_causal.is_none() && folder.join(MODULES).exists() && !encodes() {
            bail!(
                "{}: the model's vectors come with code of its own (`auto_map` in config.json), by which tokens may see those \
                 behind them: say in a copy of config.json whether they do (`\"is_causal\": false`), or do not (true)",
                folder.display()
            );
        }
        let modules = folder.join(MODULES);
        let transformer = folder.join(TRANSFORMER);
        // As of what version 6 makes of a model for chats.
        let config: TransformerConfig = read(&transformer)?.unwrap_or_default();
        if config.modality_config["message"].is_object() {
            bail!(
                "{}: texts go through the chat template (`modality_config`), which is not supported",
                transformer.display()
            );
        }
        let prompts = read(&folder.join(PROMPTS))?.unwrap_or_default();
        let mut said = Self {
            pooling: asked,
            include_prompt: true,
            layers: Vec::new(),
            most_tokens: config.max_seq_length,
            lowercase: config.do_lower_case == Some(true),
            normalized: None,
            prompts,
        };
        let (mut pools, mut pooling) = (false, POOLING.to_owned());
        if let Some(list) = read::<Vec<Module>>(&modules)? {
            let mut ends = false;
            for module in &list {
                ends |= module.class() == "Normalize";
                pools |= module.class() == "Pooling";
                match module.class() {
                    // What drops out does so in training.
                    "Transformer" | "Pooling" | "Normalize" | "Dropout" => {}
                    "Dense" if pools && !ends && !module.r#type.starts_with("pylate") => {
                        said.layers.push(Dense::read(&folder.join(&module.path))?);
                    }
                    _ => bail!(
                        "{}: the module {} is not supported here: vectors without it are others",
                        modules.display(),
                        module.r#type
                    ),
                }
            }
            said.normalized = Some(list.iter().any(|it| it.class() == "Normalize"));
            if let Some(module) = list.iter().find(|it| it.class() == "Pooling") {
                pooling = format!("{}/config.json", module.path);
            }
        }
        let path = folder.join(pooling);
        if pools && asked.is_none() && !path.exists() {
            bail!(
                "{}: is missing, which modules.json names: fetch it again (`iree-llm pull`)",
                path.display()
            );
        }
        if let Some(config) = read::<Map<_, _>>(&path)? {
            said.include_prompt = config.get("include_prompt") != Some(&Value::Bool(false));
            if asked.is_none() {
                said.pooling =
                    Some(of_config(&config).with_context(|| path.display().to_string())?);
            }
        }
        if let Some(metadata) = &metadata {
            if said.pooling.is_none() || ranks(metadata) {
                said.pooling = pooling_of_gguf(metadata, folder)?;
            }
            if said.layers.is_empty() {
                said.layers = layers_of_gguf(metadata, folder)?;
            }
        }
        // As sentence-transformers does where nothing is said; a decoder's last token has seen all others.
        if said.pooling.is_none() && encodes() {
            said.pooling = Some(Pooling::Mean);
        }
        Ok(said)
    }
}

impl Prompts {
    /// The one called `name`, else the model's default, else nothing.
    ///
    /// # Errors
    ///
    /// The model has none of that name; those that it has are listed.
    pub fn find(&self, name: Option<&str>) -> Result<&str> {
        let Some(name) = name.or(self.default_prompt_name.as_deref()) else { return Ok("") };
        match self.prompts.get(name) {
            Some(prompt) => Ok(prompt.as_deref().unwrap_or_default()),
            None if self.prompts.is_empty() => {
                bail!("the model has no prompt {name:?}, and no other; --prefix gives one")
            }
            None => {
                let names: Vec<_> = self.prompts.keys().map(String::as_str).collect();
                bail!("the model has no prompt {name:?}; it has {}", names.join(", "))
            }
        }
    }
}

/// The pooling that a module's `config` says.
fn of_config(config: &Map<String, Value>) -> Result<Pooling> {
    let wrong = || {
        let modes = MODES.map(|(mode, ..)| mode).join(", ");
        anyhow!(
            "it says no pooling, several, or another one; supported is one of {modes}: or give --pooling"
        )
    };
    let found = match config.get("pooling_mode") {
        Some(mode) => MODES.iter().find(|(name, ..)| mode == name),
        None => {
            let on = config.iter().filter(|(key, value)| {
                key.starts_with("pooling_mode_") && **value == Value::Bool(true)
            });
            let on: Vec<_> = on.map(|(key, _)| key).collect();
            MODES.iter().find(|(_, key, _)| on == [key])
        }
    };
    found.map(|(.., pooling)| *pooling).ok_or_else(wrong)
}

/// The layers that pooled states go through, if the converter was told to write them.
fn layers_of_gguf(metadata: &Metadata, model: &Path) -> Result<Vec<Dense>> {
    let Some(family) = metadata.text("general.architecture") else { return Ok(Vec::new()) };
    let names = ["dense_2", "dense_3"];
    let sizes = names.map(|name| {
        let size = |end: &str| metadata.unsigned(&format!("{family}.{name}_feat_{end}"));
        Some((name, usize::try_from(size("in")?).ok()?, usize::try_from(size("out")?).ok()?))
    });
    let mut sizes = sizes.into_iter().flatten().peekable();
    if sizes.peek().is_none() {
        return Ok(Vec::new());
    }
    let checkpoint = Checkpoint::open(model, LoadMode::Mmap)?;
    let layer = |(name, inputs, outputs)| {
        Dense::of(&checkpoint, name, [outputs, inputs], false, Activation::Identity)
    };
    sizes.map(layer).collect()
}

/// Whether a GGUF file says that it ranks.
fn ranks(metadata: &Metadata) -> bool {
    let family = metadata.text("general.architecture").unwrap_or_default();
    metadata.unsigned(&format!("{family}.pooling_type")) == Some(4)
}

/// The pooling that a GGUF file says, as ggml counts them.
fn pooling_of_gguf(metadata: &Metadata, model: &Path) -> Result<Option<Pooling>> {
    let Some(family) = metadata.text("general.architecture") else { return Ok(None) };
    let key = format!("{family}.pooling_type");
    match metadata.unsigned(&key) {
        None | Some(0) => Ok(None),
        Some(1) => Ok(Some(Pooling::Mean)),
        Some(2) => Ok(Some(Pooling::Cls)),
        Some(3) => Ok(Some(Pooling::Last)),
        Some(4) => bail!("{}: `{key}` is 4: it ranks texts, and has no vectors", model.display()),
        Some(other) => bail!("{}: `{key}` is {other}, an unknown pooling", model.display()),
    }
}

/// Writes into `folder` what the GGUF file `model` says of its vectors, if it says something, in the layout of
/// sentence-transformers. They have the length 1, as llama.cpp makes them.
///
/// # Errors
///
/// It says something that is not known, or that has no place there; `folder` cannot be written.
pub fn write(model: &Path, folder: &Path) -> Result<()> {
    let Some(metadata) = Metadata::of_model(model)? else { return Ok(()) };
    if ranking::is_classifier_file(model, Some(&metadata))?
        || !layers_of_gguf(&metadata, model)?.is_empty()
    {
        bail!(
            "{}: layers behind the model, which rank or make vectors, are not converted",
            model.display()
        );
    }
    let Some(pooling) = pooling_of_gguf(&metadata, model)? else { return Ok(()) };
    let family = metadata.text("general.architecture");
    let width = family.and_then(|it| metadata.unsigned(&format!("{it}.embedding_length")));
    let modules = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")];
    let modules = modules.iter().enumerate().map(|(at, (class, path))| {
        let kind = format!("sentence_transformers.models.{class}");
        json!({"idx": at, "name": at.to_string(), "path": path, "type": kind})
    });
    let mut config = json!({"word_embedding_dimension": width, "include_prompt": true});
    for (_, key, mode) in MODES {
        config[key] = (mode == pooling).into();
    }
    for (name, value) in [(MODULES, modules.collect::<Value>()), (POOLING, config)] {
        let path = folder.join(name);
        let write = || {
            path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
            std::fs::write(&path, format!("{value:#}\n"))
        };
        write().with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// What the file `path` says, if it is there.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    match std::fs::read(path) {
        Ok(bytes) => {
            serde_json::from_slice(&bytes).map(Some).with_context(|| path.display().to_string())
        }
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(error).with_context(|| path.display().to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_says_how() {
        let folder = tempfile::tempdir().unwrap();
        let read = |asked| Said::read(folder.path(), asked);
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let nothing = Said {
            pooling: None,
            include_prompt: true,
            layers: Vec::new(),
            most_tokens: None,
            lowercase: false,
            normalized: None,
            prompts: Prompts::default(),
        };
        assert_eq!(read(None).unwrap(), nothing);
        write(POOLING, r#"{"pooling_mode_lasttoken": true, "pooling_mode_mean_tokens": false}"#);
        write(MODULES, r#"[{"type": "sentence_transformers.models.Normalize"}]"#);
        let said = Said { pooling: Some(Pooling::Last), normalized: Some(true), ..nothing };
        assert_eq!(read(None).unwrap(), said);
        for wrong in [
            r#"{"pooling_mode_max_tokens": true}"#,
            r#"{"pooling_mode_mean_tokens": true, "pooling_mode_max_tokens": true}"#,
            r#"{"pooling_mode": ["mean", "cls"]}"#,
            r#"{"pooling_mode": "weightedmean"}"#,
        ] {
            write(POOLING, wrong);
            let error = format!("{:#}", read(None).unwrap_err());
            assert!(error.contains("--pooling") && error.contains("1_Pooling"), "{error}");
        }
        // Who chooses hears of the other file all the same.
        let mean = Said { pooling: Some(Pooling::Mean), ..said };
        assert_eq!(read(Some(Pooling::Mean)).unwrap(), mean);
        write(MODULES, r#"[{"type": "sentence_transformers.models.CNN"}]"#);
        let error = read(Some(Pooling::Mean)).unwrap_err().to_string();
        assert!(error.contains("modules.json") && error.contains("models.CNN"), "{error}");
        write(MODULES, "{}");
        let error = format!("{:#}", read(None).unwrap_err());
        assert!(error.contains("modules.json") && error.contains("expected a sequence"), "{error}");
    }

    #[test]
    fn a_folder_says_it_as_newer_versions_write_it() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write(
            MODULES,
            r#"[
              {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"},
              {"idx": 1, "name": "1", "path": "2_Pooling", "type": "sentence_transformers.sentence_transformer.modules.pooling.Pooling"}
            ]"#,
        );
        write(
            "2_Pooling/config.json",
            r#"{"embedding_dimension": 32, "pooling_mode": "mean", "include_prompt": false}"#,
        );
        write(
            PROMPTS,
            r#"{"prompts": {"query": "Query: ", "document": "", "none": null},
                "default_prompt_name": "query", "similarity_fn_name": "cosine"}"#,
        );
        let said = Said::read(folder.path(), None).unwrap();
        assert_eq!((said.pooling, said.normalized), (Some(Pooling::Mean), Some(false)));
        assert!(!said.include_prompt);
        let find = |name| said.prompts.find(name).unwrap();
        let found = [None, Some("query"), Some("document"), Some("none")].map(find);
        assert_eq!(found, ["Query: ", "Query: ", "", ""]);
        let config =
            |of: &str| format!(r#"{{"modality_config": {{{of}: {{"method": "forward"}}}}}}"#);
        write(TRANSFORMER, &config(r#""text""#));
        assert_eq!(Said::read(folder.path(), None).unwrap(), said);
        write(TRANSFORMER, &config(r#""message""#));
        let error = Said::read(folder.path(), None).unwrap_err().to_string();
        assert!(error.contains(TRANSFORMER) && error.contains("chat template"), "{error}");
        let error = said.prompts.find(Some("passage")).unwrap_err().to_string();
        assert!(error.contains("\"passage\"; it has document, none, query"), "{error}");
        let error = Prompts::default().find(Some("query")).unwrap_err().to_string();
        assert!(error.contains("--prefix"), "{error}");
    }

    #[test]
    fn a_gguf_file_says_how_and_its_folder_says_the_same() {
        let place = tempfile::tempdir().unwrap();
        let string =
            |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
        let number = |name: &str, number: u32| {
            [string(name), 4u32.to_le_bytes().to_vec(), number.to_le_bytes().to_vec()].concat()
        };
        let family = [string("general.architecture"), 8u32.to_le_bytes().to_vec(), string("qwen3")];
        let head = [&b"GGUF"[..], &3u32.to_le_bytes(), &0u64.to_le_bytes(), &3u64.to_le_bytes()];
        let keys = [number("qwen3.pooling_type", 1), number("qwen3.embedding_length", 64)];
        let bytes = [head.concat(), family.concat(), keys.concat()].concat();
        let (model, folder) = (place.path().join("m.gguf"), place.path().join("m"));
        std::fs::write(&model, bytes).unwrap();
        write(&model, &folder).unwrap();
        let said = Said::read(&folder, None).unwrap();
        assert_eq!((said.pooling, said.normalized), (Some(Pooling::Mean), Some(true)));
        assert_eq!(Said::read(&model, None).unwrap().pooling, said.pooling);
        let text = std::fs::read_to_string(folder.join(POOLING)).unwrap();
        assert!(text.contains("\"word_embedding_dimension\": 64"), "{text}");
    }
}

//! The keys of a GGUF file of which the crate `text` makes tokenizers and templates.

use std::path::Path;

use anyhow::{Error, Result, anyhow};
use text::{TokenType, Vocabulary};
use xla_session::checkpoint::gguf::{Metadata, Value};

/// What the GGUF file of the model at `model` says of its tokens; `None` where it has none, as a folder
/// in Hugging Face layout.
pub fn of_model(model: &Path) -> Result<Option<Vocabulary>> {
    let Some(metadata) = Metadata::of_model(model)? else { return Ok(None) };
    let keys = Keys { metadata: &metadata, path: model };
    vocabulary(&keys).map(Some)
}

fn vocabulary(keys: &Keys<'_>) -> Result<Vocabulary> {
    let types = keys.integers("tokenizer.ggml.token_type")?.iter().map(|&number| {
        let wrong =
            || keys.wrong("tokenizer.ggml.token_type", format_args!("has the type {number}"));
        TokenType::from_number(number).ok_or_else(wrong)
    });
    let bytes = keys.integers("tokenizer.ggml.precompiled_charsmap")?;
    Ok(Vocabulary {
        architecture: keys.text("general.architecture")?.unwrap_or_default(),
        model: keys.text("tokenizer.ggml.model")?.unwrap_or_default(),
        pre: keys.text("tokenizer.ggml.pre")?,
        tokens: keys.texts("tokenizer.ggml.tokens")?,
        scores: keys.floats("tokenizer.ggml.scores")?,
        types: types.collect::<Result<_>>()?,
        merges: keys.texts("tokenizer.ggml.merges")?,
        bos: keys.id("bos")?,
        eos: keys.id("eos")?,
        eot: keys.id("eot")?,
        eom: keys.id("eom")?,
        unknown: keys.id("unknown")?,
        // As GGUF spells it.
        separator: keys.id("seperator")?,
        padding: keys.id("padding")?,
        cls: keys.id("cls")?,
        mask: keys.id("mask")?,
        add_bos: keys.flag("tokenizer.ggml.add_bos_token")?,
        add_eos: keys.flag("tokenizer.ggml.add_eos_token")?,
        add_sep: keys.flag("tokenizer.ggml.add_sep_token")?,
        add_space_prefix: keys.flag("tokenizer.ggml.add_space_prefix")?,
        remove_extra_whitespaces: keys
            .flag("tokenizer.ggml.remove_extra_whitespaces")?
            .unwrap_or(false),
        precompiled_charsmap: bytes.iter().map(|&byte| byte as u8).collect(),
        lowercase: keys.flag("tokenizer.ggml.normalizer.lowercase")?,
        strip_accents: keys.flag("tokenizer.ggml.normalizer.strip_accents")?,
        chat_template: keys.text("tokenizer.chat_template")?,
        tool_template: keys.text("tokenizer.chat_template.tool_use")?,
    })
}

/// Keys by type; an absent one is none, or empty.
struct Keys<'a> {
    metadata: &'a Metadata,
    path: &'a Path,
}

impl Keys<'_> {
    fn wrong(&self, key: &str, what: impl std::fmt::Display) -> Error {
        anyhow!(
            "{}: `{key}` {what}: the file is damaged, or newer than this program",
            self.path.display()
        )
    }

    fn text(&self, key: &str) -> Result<Option<String>> {
        match self.metadata.get(key) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text.clone())),
            Some(_) => Err(self.wrong(key, "is no string")),
        }
    }

    fn texts(&self, key: &str) -> Result<Vec<String>> {
        match self.metadata.get(key) {
            None => Ok(Vec::new()),
            Some(Value::Texts(texts)) => Ok(texts.iter().map(str::to_owned).collect()),
            Some(_) => Err(self.wrong(key, "is no list of strings")),
        }
    }

    fn integers(&self, key: &str) -> Result<&[i64]> {
        match self.metadata.get(key) {
            None => Ok(&[]),
            Some(Value::Integers(values)) => Ok(values),
            Some(_) => Err(self.wrong(key, "is no list of integers")),
        }
    }

    fn floats(&self, key: &str) -> Result<Vec<f32>> {
        match self.metadata.get(key) {
            None => Ok(Vec::new()),
            Some(Value::Floats(values)) => Ok(values.iter().map(|&value| value as f32).collect()),
            Some(Value::Integers(values)) => Ok(values.iter().map(|&value| value as f32).collect()),
            Some(_) => Err(self.wrong(key, "is no list of numbers")),
        }
    }

    fn id(&self, name: &str) -> Result<Option<u32>> {
        let key = format!("tokenizer.ggml.{name}_token_id");
        match self.metadata.get(&key) {
            None => Ok(None),
            Some(Value::Integer(id)) => {
                u32::try_from(*id).map(Some).map_err(|_| self.wrong(&key, "is no token id"))
            }
            Some(_) => Err(self.wrong(&key, "is no integer")),
        }
    }

    fn flag(&self, key: &str) -> Result<Option<bool>> {
        match self.metadata.get(key) {
            None => Ok(None),
            Some(Value::Boolean(value)) => Ok(Some(*value)),
            Some(_) => Err(self.wrong(key, "is neither true nor false")),
        }
    }
}

//! Tokenizer and chat template beside a model that was written.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use text::Tokenizer;

use crate::model_source::Model;
use crate::progress::Progress;
use crate::vocabulary;

/// What tokenizers and chat templates lie in.
const TEXT: [&str; 9] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
];

/// Writes the model's tokenizer and chat template, as far as they are known, into `folder`.
///
/// # Errors
///
/// They cannot be read or written.
pub fn write(model: &Model, folder: &Path, progress: &Progress) -> Result<()> {
    let Some(vocabulary) = vocabulary::of_model(&model.folder)? else {
        for name in TEXT {
            let (from, to) = (model.folder.join(name), folder.join(name));
            if from.is_file() {
                fs::copy(&from, &to).with_context(|| from.display().to_string())?;
            }
        }
        return Ok(());
    };
    match Tokenizer::from_vocabulary(&vocabulary, &model.folder) {
        Ok(tokenizer) => write_file(folder, "tokenizer.json", &tokenizer.to_json()?)?,
        Err(error) => progress.report(&format!("no tokenizer.json: {error}")),
    }
    let config = serde_json::to_string_pretty(&vocabulary.tokenizer_config())?;
    write_file(folder, "tokenizer_config.json", &format!("{config}\n"))
}

fn write_file(folder: &Path, name: &str, text: &str) -> Result<()> {
    let path = folder.join(name);
    fs::write(&path, text).with_context(|| path.display().to_string())
}

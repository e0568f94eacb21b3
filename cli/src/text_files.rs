//! What goes beside a model that was written: tokenizer, chat template, what makes vectors of hidden states.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use iree_llm::sentence_transformers;
use text::Tokenizer;

use crate::model_source::Model;
use crate::progress::Progress;

/// What tokenizers and chat templates lie in.
const TEXT: [&str; 10] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "additional_chat_templates/tool_use.jinja",
    "chat_template.json",
];

/// What models of vectors, and those that rank, say in the layout of sentence-transformers.
const VECTORS: [&str; 4] = [
    sentence_transformers::MODULES,
    sentence_transformers::POOLING,
    sentence_transformers::PROMPTS,
    sentence_transformers::TRANSFORMER,
];

/// Writes the model's tokenizer and chat template, and how it makes vectors, as far as they are known, into
/// `folder`.
///
/// # Errors
///
/// They cannot be read or written.
pub fn write(model: &Model, folder: &Path, progress: &Progress) -> Result<()> {
    let Some(vocabulary) = model.files().vocabulary()? else {
        for name in TEXT.into_iter().chain(VECTORS) {
            copy(&model.folder.join(name), &folder.join(name))?;
        }
        for name in sentence_transformers::module_files(&model.folder)? {
            copy(&model.folder.join(&name), &folder.join(&name))?;
        }
        return Ok(());
    };
    sentence_transformers::write(&model.folder, folder)?;
    match Tokenizer::from_vocabulary(&vocabulary, &model.folder) {
        Ok(tokenizer) => write_file(folder, "tokenizer.json", &tokenizer.to_json()?)?,
        Err(error) => progress.report(&format!("no tokenizer.json: {error}")),
    }
    let config = serde_json::to_string_pretty(&vocabulary.tokenizer_config())?;
    write_file(folder, "tokenizer_config.json", &format!("{config}\n"))
}

/// Copies a file, if there is one.
fn copy(from: &Path, to: &Path) -> Result<()> {
    if !from.is_file() {
        return Ok(());
    }
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    fs::copy(from, to).with_context(|| from.display().to_string())?;
    Ok(())
}

fn write_file(folder: &Path, name: &str, text: &str) -> Result<()> {
    let path = folder.join(name);
    fs::write(&path, text).with_context(|| path.display().to_string())
}

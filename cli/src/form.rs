//! Flags that say what form an answer is to have.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use iree_llm::Form;
use iree_llm::form::{Constraint, Forms};
use serde_json::Value;
use text::{Prompt, Tokenizer};

use crate::lines::read_text;

/// What an answer is kept to: one of these, or nothing.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Form")]
#[group(multiple = false)]
pub struct FormArgs {
    /// Answer in JSON of this schema: JSON itself, or a file of it; `{}` is any object. Thoughts go before it
    #[arg(long, value_name = "JSON|FILE")]
    json_schema: Option<String>,

    /// Answer in what this regular expression matches
    #[arg(long, value_name = "EXPRESSION")]
    regex: Option<String>,

    /// Answer in what the grammar in this file makes, in Lark's language as llguidance has it
    #[arg(long, value_name = "FILE")]
    grammar: Option<PathBuf>,
}

/// What keeps an answer to its form, and where it says why it could not.
pub struct Kept {
    pub constraint: Constraint,
    pub failure: Arc<OnceLock<String>>,
}

impl Kept {
    /// # Errors
    ///
    /// The form could not be kept to.
    pub fn check(failure: Option<&Arc<OnceLock<String>>>) -> Result<()> {
        match failure.and_then(|it| it.get()) {
            Some(why) => bail!("the form of the answer could not be kept to: {why}"),
            None => Ok(()),
        }
    }
}

impl FormArgs {
    /// The form that the flags say; `None` where any text will do.
    ///
    /// # Errors
    ///
    /// A file cannot be read, or is no JSON.
    pub fn form(&self) -> Result<Option<Form>> {
        if let Some(schema) = &self.json_schema {
            let inline = schema.trim_start().starts_with('{');
            let text = if inline { schema.clone() } else { read_text(Path::new(schema))? };
            let what = || if inline { "--json-schema" } else { schema }.to_owned();
            let schema: Value = serde_json::from_str(&text).with_context(what)?;
            let any = schema.as_object().is_some_and(serde_json::Map::is_empty);
            let form = if any { Form::json_object() } else { Form::json_schema(schema) };
            return Ok(Some(form.called("--json-schema")));
        }
        if let Some(expression) = &self.regex {
            return Ok(Some(Form::regex(expression).called("--regex")));
        }
        let Some(path) = &self.grammar else { return Ok(None) };
        Ok(Some(Form::lark(read_text(path)?).called("--grammar")))
    }
}

/// What keeps an answer to `form`: to `prompt`, where that is of a chat.
///
/// # Errors
///
/// The form is none that can be kept to, or nothing would end the answer.
pub fn keep(
    form: Form,
    forms: &Forms,
    tokenizer: Option<&Tokenizer>,
    prompt: Option<&Prompt>,
    vocab_size: usize,
    eos: &[u32],
) -> Result<Kept> {
    ensure!(!eos.is_empty(), "{} and --ignore-eos: forms have an end", form.name());
    let tokenizer = tokenizer.with_context(|| format!("{} needs a tokenizer", form.name()))?;
    let form = match prompt {
        Some(prompt) => form.of_answer(tokenizer, prompt),
        None => form,
    };
    let start = forms.start(&form, tokenizer, vocab_size, eos)?;
    let (constraint, failure) = start.constraint();
    Ok(Kept { constraint, failure })
}

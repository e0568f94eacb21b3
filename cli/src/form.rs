//! Flags that say what form an answer is to have.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use iree_llm::Form;
use serde_json::Value;

use crate::lines::read_text;

/// What an answer is kept to: one of these, or nothing.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Form")]
#[group(multiple = false)]
pub struct FormArgs {
    /// Answer in JSON of this schema: JSON itself, or a file of it; `{}` is any object. The model is not told of it: say in
    /// the prompt what you want. Thoughts that the prompt has begun go before it
    #[arg(long, value_name = "JSON|FILE")]
    json_schema: Option<String>,

    /// Answer in what this regular expression matches
    #[arg(long, value_name = "EXPRESSION")]
    regex: Option<String>,

    /// Answer in what the grammar in this file makes, in Lark's language as llguidance has it
    #[arg(long, value_name = "FILE")]
    grammar: Option<PathBuf>,
}

impl FormArgs {
    /// The form that the flags say; `None` where any text will do.
    ///
    /// # Errors
    ///
    /// A file cannot be read, or is no JSON; nothing would end the answer.
    pub fn form(&self, ignores_eos: bool) -> Result<Option<Form>> {
        let form = self.read()?;
        if let Some(form) = form.as_ref().filter(|_| ignores_eos) {
            bail!("{} and --ignore-eos: forms have an end", form.name());
        }
        Ok(form)
    }

    fn read(&self) -> Result<Option<Form>> {
        let read = |path: &Path| {
            ensure!(path != Path::new("-"), "a form is read from a file: stdin is for the prompt");
            read_text(path)
        };
        if let Some(schema) = &self.json_schema {
            let inline = schema.trim_start().starts_with('{');
            let text = if inline { schema.clone() } else { read(Path::new(schema))? };
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
        Ok(Some(Form::lark(read(path)?).called("--grammar")))
    }
}

//! Flags that say what form an answer is to have.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use iree_llm::Form;
use iree_llm::form::{Constraint, Forms, Start, Thinks};
use serde_json::Value;
use text::{AnswerStyle, Prompt, Thoughts, Tokenizer};

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
    /// A file cannot be read, or is no JSON.
    pub fn form(&self) -> Result<Option<Form>> {
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

/// Keeps answers of a model to a form.
pub struct Keeper {
    form: Form,
    forms: Forms,
    /// Those that there were, by what prompts make of the form.
    starts: RefCell<Vec<(Around, Start)>>,
}

/// What stands around the form in an answer: nothing outside of chats.
type Around = Option<(Thinks, Option<Thoughts>, Option<AnswerStyle>)>;

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

impl Keeper {
    /// One to `form`, for a model of `vocab_size` tokens, of which `eos` end an answer unless they are ignored.
    ///
    /// # Errors
    ///
    /// Nothing would end the answer, or there is no tokenizer.
    pub fn new(
        form: Form,
        tokenizer: Option<&Tokenizer>,
        vocab_size: usize,
        eos: &[u32],
        ignores_eos: bool,
    ) -> Result<Self> {
        ensure!(!ignores_eos, "{} and --ignore-eos: forms have an end", form.name());
        let tokenizer = tokenizer.with_context(|| format!("{} needs a tokenizer", form.name()))?;
        let forms = Forms::new(tokenizer.clone(), vocab_size, eos.to_vec());
        Ok(Self { form, forms, starts: RefCell::default() })
    }

    /// What keeps an answer to it: to `prompt`, where that is of a chat.
    ///
    /// # Errors
    ///
    /// The form is none that can be kept to.
    pub fn keep(&self, prompt: Option<&Prompt>) -> Result<Kept> {
        let around = prompt.map(|it| (Thinks::of(it), it.response_to_come(), it.style()));
        let mut starts = self.starts.borrow_mut();
        let at = match starts.iter().position(|(it, _)| *it == around) {
            Some(at) => at,
            None => {
                let Self { form, forms, .. } = self;
                let start = match prompt {
                    Some(prompt) => forms.start_answer(prompt, Some(form.clone()), None)?,
                    None => Some(forms.start(form)?),
                };
                starts.push((around, start.context("an answer in a form has a beginning")?));
                starts.len() - 1
            }
        };
        let (constraint, failure) = starts[at].1.constraint();
        Ok(Kept { constraint, failure })
    }
}

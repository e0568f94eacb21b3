//! Models that are asked for "yes" or "no": Qwen3-Reranker and others in the layout of sentence-transformers with the module
//! `LogitScore`.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result, anyhow, bail};
use serde::Deserialize;
use serde_json::json;
use text::{ChatTemplate, RenderOptions, Tokenizer};
use xla_session::Pooling;
use xla_session::batching::{self, Request};
use xla_session::checkpoint::gguf::Metadata;
use xla_session::checkpoint::{Checkpoint, LoadMode};
use xla_session::config::ModelConfig;

use super::{Of, Score, room};
use crate::dense::{Activation, Dense};
use crate::sentence_transformers::{MODULES, Module, PROMPTS, Prompts, read};

/// What Qwen3-Reranker is told where nobody says what a document is to be good for.
const INSTRUCTION: &str =
    "Given a web search query, retrieve relevant passages that answer the query";

/// What a model is asked, and by which tokens it answers.
#[derive(Debug)]
pub(super) struct Asked {
    /// What makes a prompt of the roles `query` and `document`; without one it is Qwen3-Reranker's.
    template: Option<ChatTemplate>,
    instruction: String,
    answer: Answer,
}

/// By what it says how likely "yes" is.
#[derive(Debug)]
enum Answer {
    /// By logits of tokens; without `no` that of `yes` stands alone.
    Tokens { yes: u32, no: Option<u32> },
    /// By the rows of the output projection for both, all that a GGUF file has of it.
    Rows(Arc<Dense>),
}

/// The module that makes a score of logits.
#[derive(Deserialize)]
struct LogitScore {
    true_token_id: u32,
    false_token_id: Option<u32>,
}

impl Asked {
    /// As [`Ranking::read`](super::Ranking::read). Folders of Qwen3-Reranker from before April 2026 say nothing: they are known
    /// by their name.
    pub fn read(
        folder: &Path,
        metadata: Option<&Metadata>,
        tokenizer: &Tokenizer,
        template: impl FnOnce() -> Result<Option<ChatTemplate>>,
    ) -> Result<Option<Self>> {
        if let Some(rows) = metadata.map(|it| rows_of_gguf(it, folder)).transpose()?.flatten() {
            let answer = Answer::Rows(Arc::new(rows));
            return Ok(Some(Self { template: None, instruction: INSTRUCTION.to_owned(), answer }));
        }
        let modules = folder.join(MODULES);
        let list = read::<Vec<Module>>(&modules)?.unwrap_or_default();
        if let Some(module) = list.iter().find(|it| it.class() == "LogitScore") {
            let path = folder.join(&module.path).join("config.json");
            let score = read::<LogitScore>(&path)?;
            let score = score.with_context(|| {
                format!("{}: is missing: fetch it again (`iree-llm pull`)", path.display())
            })?;
            let prompts: Prompts = read(&folder.join(PROMPTS))?.unwrap_or_default();
            let asked = Self {
                template: template()?,
                instruction: prompts.find(None)?.to_owned(),
                answer: Answer::Tokens { yes: score.true_token_id, no: score.false_token_id },
            };
            asked.check().with_context(|| folder.display().to_string())?;
            return Ok(Some(asked));
        }
        if !is_qwen3_reranker(folder) {
            return Ok(None);
        }
        let token = |text: &str| match tokenizer.encode(text, false)?[..] {
            [id] => Ok(id),
            _ => Err(anyhow!("{}: {text:?} is no token", folder.display())),
        };
        Ok(Some(Self {
            template: None,
            instruction: INSTRUCTION.to_owned(),
            answer: Answer::Tokens { yes: token("yes")?, no: Some(token("no")?) },
        }))
    }

    /// Whether the model's template knows queries and documents.
    fn check(&self) -> Result<()> {
        if self.template.is_none() {
            bail!("it ranks by its chat template, and has none");
        }
        let text = self.text("AN INSTRUCTION", "A QUERY", "A DOCUMENT")?;
        match ["A QUERY", "A DOCUMENT"].into_iter().find(|it| !text.contains(it)) {
            Some(missing) => bail!("its chat template leaves out {missing}: no such roles"),
            None => Ok(()),
        }
    }

    pub fn has_template(&self) -> bool {
        self.template.is_some()
    }

    /// Whether it is of the model that `config` says.
    pub fn check_model(&self, config: &ModelConfig) -> Result<()> {
        let vocab_size = config.vocab_size;
        match &self.answer {
            Answer::Rows(rows) if rows.inputs() != config.hidden_size => {
                bail!("it ranks by {} numbers, of {}", rows.inputs(), config.hidden_size)
            }
            Answer::Rows(_) => Ok(()),
            Answer::Tokens { yes, no } => {
                let mut ids = [Some(*yes), *no].into_iter().flatten();
                match ids.find(|&id| id as usize >= vocab_size) {
                    Some(id) => bail!("it ranks by the token {id}, of {vocab_size}"),
                    None => Ok(()),
                }
            }
        }
    }

    /// The tokens of the question how well the document answers the query, at most `most`.
    pub fn prompt(
        &self,
        tokenizer: &Tokenizer,
        instruction: Option<&str>,
        (query, document): (&str, &str),
        most: Option<usize>,
    ) -> Result<Vec<u32>> {
        let tokens = |document: &str| {
            let text = self.text(instruction.unwrap_or(&self.instruction), query, document)?;
            Ok::<_, anyhow::Error>(tokenizer.encode_chat(&text)?)
        };
        let all = tokens(document)?;
        let Some(most) = most.filter(|most| *most < all.len()) else { return Ok(all) };
        // What is around it may go together with its ends: less is left until it fits.
        let mut room = room(most, tokens("")?.len())?;
        let ids = tokenizer.encode(document, false)?;
        loop {
            let text = tokenizer.decode(&ids[..room.min(ids.len())])?;
            // Half a character is none.
            let cut = tokens(text.trim_end_matches('\u{fffd}'))?;
            if cut.len() <= most || room == 0 {
                return Ok(cut);
            }
            room = room.saturating_sub(cut.len() - most);
        }
    }

    fn text(&self, instruction: &str, query: &str, document: &str) -> Result<String> {
        let Some(template) = &self.template else {
            return Ok(qwen3(instruction, query, document));
        };
        let said = [("system", instruction), ("query", query), ("document", document)];
        let said = said.iter().filter(|(role, text)| *role != "system" || !text.is_empty());
        let messages: Vec<_> =
            said.map(|(role, content)| json!({"role": role, "content": content})).collect();
        Ok(template.render(&messages, &RenderOptions::prompt())?)
    }

    /// The request that answers `prompt`, and what makes a score of it once it has ended.
    pub fn request(&self, prompt: Vec<u32>) -> (Request, Score) {
        match &self.answer {
            Answer::Rows(rows) => {
                let pooling = Some(Pooling::Last);
                let request = Request { prompt, pooling, ..Request::default() };
                (request, Score(Of::Rows(Arc::clone(rows))))
            }
            &Answer::Tokens { yes, no } => {
                let logit = Arc::default();
                let reads = Reads { yes, no, logit: Arc::clone(&logit) };
                let constraint: Option<Box<dyn batching::Constraint>> = Some(Box::new(reads));
                let request = Request { prompt, max_tokens: 1, constraint, ..Request::default() };
                (request, Score(Of::Asked(logit)))
            }
        }
    }
}

/// Qwen3-Reranker's question.
fn qwen3(instruction: &str, query: &str, document: &str) -> String {
    format!(
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the \
         Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n\
         <Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}<|im_end|>\n\
         <|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
}

/// The rows for "yes" and "no" that the GGUF file `model` has in place of an output projection, if it has.
fn rows_of_gguf(metadata: &Metadata, model: &Path) -> Result<Option<Dense>> {
    let family = metadata.text("general.architecture").unwrap_or_default();
    // Other labels are refused when the model is opened.
    if metadata.texts(&format!("{family}.classifier.output_labels")).is_none() {
        return Ok(None);
    }
    let checkpoint = Checkpoint::open(model, LoadMode::Mmap)?;
    if checkpoint.dtype("cls.output.weight").is_none() {
        return Ok(None);
    }
    let template = metadata.text("tokenizer.chat_template.rerank");
    if template.is_some_and(|it| it != qwen3(INSTRUCTION, "{query}", "{document}")) {
        bail!(
            "{}: `tokenizer.chat_template.rerank` is not Qwen3-Reranker's, which is the one that is supported",
            model.display()
        );
    }
    let width = metadata.unsigned(&format!("{family}.embedding_length")).unwrap_or_default();
    let shape = [2, usize::try_from(width)?];
    Dense::of(&checkpoint, "cls.output", shape, false, Activation::Identity).map(Some)
}

/// Whether `folder` is called so, or is one of that model's in the hub's cache.
fn is_qwen3_reranker(folder: &Path) -> bool {
    let whole = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    // `models--Qwen--Qwen3-Reranker-0.6B/snapshots/REVISION`
    let snapshots = whole.parent().filter(|it| it.ends_with("snapshots"));
    let names = [Some(folder), Some(&*whole), snapshots.and_then(Path::parent)];
    let mut names = names.into_iter().flatten().filter_map(Path::file_name);
    names.any(|it| it.to_string_lossy().to_lowercase().contains("qwen3-reranker"))
}

/// Reads the logits of the first token, of which none comes.
#[derive(Debug, Clone)]
struct Reads {
    yes: u32,
    no: Option<u32>,
    logit: Arc<OnceLock<f32>>,
}

impl batching::Constraint for Reads {
    fn restrict(&mut self, logits: &mut [f32]) -> ControlFlow<()> {
        let of = |id: u32| logits.get(id as usize).copied().unwrap_or(f32::NAN);
        let _ = self.logit.set(of(self.yes) - self.no.map_or(0.0, of));
        ControlFlow::Break(())
    }

    fn accept(&mut self, _: u32) -> ControlFlow<()> {
        ControlFlow::Break(())
    }

    fn duplicate(&self) -> Box<dyn batching::Constraint> {
        Box::new(self.clone())
    }
}

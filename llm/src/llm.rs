//! A model that answers.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::Path;
use std::sync::Arc;

use anyhow::anyhow;
use serde::Serialize;
use text::{ChatTemplate, RenderOptions, Reply, StopStrings, TextStream, Tokenizer};
use xla_session::batching::{Answer, Batcher, BatcherOptions, Ended, Piece, Request, Worker};
use xla_session::config::ModelConfig;
use xla_session::sample::{Sampler, SamplerOptions};
use xla_session::{Engine, Model};

use crate::form::{Form, FormError, Forms, Start};
use crate::response::{Heard, Response};
use crate::{Ask, Error, Files, LlmOptions, Result, Vectors};

/// A model that answers, on a thread of its own: many at once, whose prompts are found again where they begin alike.
///
/// Cloning gives another handle, and answers that come hold one; with the last one the thread ends, for which dropping it
/// waits: for the step that runs, mostly milliseconds. Opening a model blocks its thread, for minutes where one is fetched;
/// asking tokenizes there, which takes microseconds, and makes a form: milliseconds, more for large schemas and for a model's
/// first, for which its vocabulary is read.
#[derive(Clone)]
pub struct Llm(Arc<Inner>);

struct Inner {
    name: String,
    config: ModelConfig,
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    /// Or why it makes none.
    vectors: Result<Vectors, String>,
    context: usize,
    forms: Forms,
    worker: Worker,
}

impl Llm {
    /// Opens the model `name`, a path or an id on the Hugging Face hub ([`Files::find`]), which is fetched if need be. The
    /// first time its graphs are compiled, which takes some seconds.
    ///
    /// # Errors
    ///
    /// There is no such model, it is damaged or of a family that is not supported, there is no compiler for its graphs, or
    /// not enough memory.
    pub fn open(name: &str) -> Result<Self> {
        Self::open_with(name, &LlmOptions::default())
    }

    /// The same, as `options` say.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open); an option that makes no sense.
    pub fn open_with(name: &str, options: &LlmOptions) -> Result<Self> {
        let files = Files::find(name, &*options.progress)?;
        let no_tokenizer =
            || text::Error::NoTokenizer { path: files.path().join("tokenizer.json") };
        let tokenizer = files.tokenizer()?.ok_or_else(no_tokenizer)?;
        let template = files.chat_template()?;
        let vectors = files.vectors(None).map(|said| Vectors::from(&said));
        let model = Model::open(files.path(), &options.session)?;
        let engine = options.engine.clone().with_usual_room(&model);
        let engine = Engine::new(&model, &engine)?;
        let mut batching = BatcherOptions::of(&engine);
        batching.scheduler.most_running = batching.scheduler.most_running.min(options.parallel);
        (batching.gap, batching.speculate) = (options.gap, options.speculate);
        let batcher = Batcher::new(engine, &batching)?;
        let name = options.name.clone().unwrap_or_else(|| served_name(name));
        Self::new(&name, batcher, tokenizer, template, vectors)
    }

    /// A model called `name`, of its parts: what runs it, what makes tokens of text, and its chat template; how it makes
    /// vectors, or why it makes none.
    ///
    /// # Errors
    ///
    /// The system has no thread.
    pub fn new(
        name: &str,
        batcher: Batcher,
        tokenizer: Tokenizer,
        template: Option<ChatTemplate>,
        vectors: Result<Vectors>,
    ) -> Result<Self> {
        let engine = batcher.engine();
        let pages = engine.statistics();
        let context = engine.context().min(pages.pages * pages.page_tokens);
        let config = engine.model().config().clone();
        let vectors = vectors.map_err(|error| error.to_string());
        let worker = Worker::start(batcher, name);
        let worker = worker.map_err(|error| anyhow!(error).context("starting a thread"))?;
        let name = name.to_owned();
        let forms = Forms::default();
        Ok(Self(Arc::new(Inner {
            name,
            config,
            tokenizer,
            template,
            vectors,
            context,
            forms,
            worker,
        })))
    }

    /// The answer to `messages`: [`text::Message`]s, or JSON in the form of transformers (with `tool_calls`, results with
    /// the role `tool`, thoughts as `reasoning_content`).
    ///
    /// # Errors
    ///
    /// The model has no chat template, or that refuses the conversation; the prompt is longer than the context; an option
    /// is out of range; a form that cannot be kept to, or tools beside it.
    pub fn chat<M: Serialize>(&self, messages: &[M], ask: &Ask) -> Result<Response> {
        let Inner { name, tokenizer, template, .. } = &*self.0;
        let no_template = || text::Error::NoChatTemplate { folder: Path::new(name).into() };
        let template = template.as_ref().ok_or_else(no_template)?;
        let (tools, variables) = (ask.tools.clone(), ask.variables.clone());
        let continue_final_message = ask.continue_final_message;
        let add_generation_prompt = !continue_final_message;
        let options =
            RenderOptions { add_generation_prompt, continue_final_message, tools, variables };
        let prompt = template.prompt(messages, &options)?;
        if !ask.tools.is_empty() && prompt.style().is_none() {
            let message =
                "the model's chat template writes calls of tools in a way that is not known";
            return Err(Error::Unsupported(message.into()));
        }
        let tokens = tokenizer.encode_chat(&prompt.text)?;
        let detokenizer = tokenizer.detokenizer(&tokens).showing(prompt.special_ids(tokenizer));
        let stream = TextStream::new(detokenizer, StopStrings::new(&ask.stop)?);
        if ask.form.is_some() && !ask.tools.is_empty() {
            let message =
                "a form and tools together: an answer in the form could call none of them";
            return Err(Error::Unsupported(message.into()));
        }
        let form = ask.form.clone().map(|form| form.of_answer(tokenizer, &prompt));
        self.submit(tokens, ask, form.as_ref(), stream, Some(prompt.reply()))
    }

    /// What the model goes on with behind `prompt`, word for word; tools, variables and messages to go on with are for chats.
    ///
    /// # Errors
    ///
    /// The prompt is empty or longer than the context; an option is out of range; a form that cannot be kept to.
    pub fn complete(&self, prompt: &str, ask: &Ask) -> Result<Response> {
        let tokenizer = &self.0.tokenizer;
        self.complete_tokens(tokenizer.encode(prompt, true)?, ask)
    }

    /// The same, behind a prompt of token ids, which are taken as they are.
    ///
    /// # Errors
    ///
    /// As [`complete`](Self::complete), and where an id is none of the model's, as the first that comes.
    pub fn complete_tokens(&self, prompt: Vec<u32>, ask: &Ask) -> Result<Response> {
        let detokenizer = self.0.tokenizer.detokenizer(&prompt);
        let stream = TextStream::new(detokenizer, StopStrings::new(&ask.stop)?);
        self.submit(prompt, ask, ask.form.as_ref(), stream, None)
    }

    fn submit(
        &self,
        prompt: Vec<u32>,
        ask: &Ask,
        form: Option<&Form>,
        stream: TextStream,
        reply: Option<Reply>,
    ) -> Result<Response> {
        let Inner { config, worker, .. } = &*self.0;
        let room = self.room(&prompt)?;
        if ask.ignore_eos && form.is_some() {
            let message = "`ignore_eos` and a form: forms have an end";
            return Err(Error::Unsupported(message.into()));
        }
        let form = form.map(|form| self.start(form)).transpose()?;
        let kept = form.map(|start| {
            let (constraint, failure) = start.constraint();
            (constraint, (start.name(), failure))
        });
        let (constraint, unkept) = kept.unzip();
        let (heard, response) = Heard::new(self, stream, reply, unkept);
        let request = Request {
            prompt,
            max_tokens: ask.max_tokens.map_or(room, |most| most.min(room)),
            eos: if ask.ignore_eos { Vec::new() } else { config.eos_token_ids.clone() },
            likelihood: ask.likelihood,
            sampler: ask.sampling.clone().map(Sampler::new).transpose()?,
            constraint: constraint.map(|it| Box::new(it) as _),
            priority: ask.priority,
            ..Request::default()
        };
        worker.submit_all(vec![request], Box::new(heard));
        Ok(response)
    }

    /// The vector of `text`, `[hidden_size]`, pooled as the model's files say (of its last token where they say nothing),
    /// of length 1 unless they say otherwise. What a model is to be told before texts (`Files::vectors` has its prompts)
    /// is a part of the text.
    ///
    /// # Errors
    ///
    /// Its vectors are made in a way that is not supported; the text is longer than the context, or the model fails.
    pub async fn embed(&self, text: &str) -> Result<Vec<f32>> {
        let (mut answer, of) = self.submit_text(text)?;
        let mut last = None;
        while let Some(piece) = answer.recv().await {
            last = Some(piece?);
        }
        vector(last, of)
    }

    /// As [`embed`](Self::embed), for whoever has nothing else to do.
    ///
    /// # Errors
    ///
    /// As `embed`.
    ///
    /// # Panics
    ///
    /// Within an asynchronous task of tokio, whose thread it would block.
    pub fn blocking_embed(&self, text: &str) -> Result<Vec<f32>> {
        let (answer, of) = self.submit_text(text)?;
        vector(answer.into_iter().last().transpose()?, of)
    }

    fn submit_text(&self, text: &str) -> Result<(Answer, Vectors)> {
        let Inner { tokenizer, worker, .. } = &*self.0;
        let of = self.vectors().map_err(|why| Error::Unsupported(why.to_owned()))?;
        let (prompt, pooling) = (tokenizer.encode(text, true)?, Some(of.pooling));
        Ok((worker.submit(Request { prompt, pooling, ..Request::default() }), of))
    }

    /// Where an answer in `form` begins, for requests to the [worker](Self::worker): made in milliseconds, large ones and
    /// the first of a model in more.
    ///
    /// # Errors
    ///
    /// The form is none that can be kept to.
    pub fn start(&self, form: &Form) -> Result<Start, FormError> {
        let Inner { config, tokenizer, forms, .. } = &*self.0;
        forms.start(form, tokenizer, config.vocab_size, &config.eos_token_ids)
    }

    /// What is known of forms.
    pub fn forms(&self) -> &Forms {
        &self.0.forms
    }

    /// Most tokens of an answer to `prompt`.
    ///
    /// # Errors
    ///
    /// There is no room for one.
    pub fn room(&self, prompt: &[u32]) -> xla_session::Result<usize> {
        let (needed, context) = (prompt.len(), self.context());
        let max = self.config().longest_context;
        let full = xla_session::Error::ContextFull { needed, context, max };
        // The last token of an answer needs none.
        (context + 1).checked_sub(needed).filter(|room| *room > 0).ok_or(full)
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// What it is.
    pub fn config(&self) -> &ModelConfig {
        &self.0.config
    }

    /// Its tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.0.tokenizer
    }

    /// Its chat template, if it has one.
    pub fn template(&self) -> Option<&ChatTemplate> {
        self.0.template.as_ref()
    }

    /// Most tokens of a prompt and its answer together: those of the context that there is memory for.
    pub fn context(&self) -> usize {
        self.0.context
    }

    /// How it makes vectors of texts.
    ///
    /// # Errors
    ///
    /// Why it makes none.
    pub fn vectors(&self) -> Result<Vectors, &str> {
        self.0.vectors.as_ref().copied().map_err(String::as_str)
    }

    /// How its makers recommend to draw tokens (`generation_config.json`, or keys of a GGUF file), with another seed each
    /// time.
    pub fn recommended(&self) -> SamplerOptions {
        let seed = RandomState::new().build_hasher().finish();
        SamplerOptions { seed, ..SamplerOptions::recommended(&self.0.config.sampling) }
    }

    /// What runs its requests: for those of token ids, statistics, and an end of all.
    pub fn worker(&self) -> &Worker {
        &self.0.worker
    }
}

/// That of a text whose request has ended so.
fn vector(last: Option<Piece>, of: Vectors) -> Result<Vec<f32>> {
    let Some(Piece::Ended(Ended { vector: Some(mut vector), .. })) = last else {
        return Err(xla_session::Error::Stopped.into());
    };
    if of.normalized {
        xla_session::pooling::normalize(&mut vector);
    }
    Ok(vector)
}

/// The end of the path `name`, or an id as it is.
pub fn served_name(name: &str) -> String {
    let asked = Path::new(name);
    if !asked.exists() {
        return name.to_owned();
    }
    let whole = asked.canonicalize().unwrap_or_else(|_| asked.to_owned());
    let end = if whole.is_dir() { whole.file_name() } else { whole.file_stem() };
    end.map_or_else(|| name.to_owned(), |it| it.to_string_lossy().into_owned())
}

impl fmt::Debug for Llm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Llm").field("name", &self.0.name).finish_non_exhaustive()
    }
}

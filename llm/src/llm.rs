//! A model that answers.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::Path;
use std::sync::Arc;

use anyhow::anyhow;
use serde::Serialize;
use text::{ChatTemplate, Infill, Place, RenderOptions, Reply, StopStrings, TextStream, Tokenizer};
use xla_session::batching::{
    Answer, Batcher, BatcherOptions, Ended, Piece, Request, Speculate, Worker,
};
use xla_session::config::ModelConfig;
use xla_session::sample::{Sampler, SamplerOptions};
use xla_session::{Engine, Model, SessionOptions};

use crate::form::{Forms, Start};
use crate::ranking::Score;
use crate::response::{Heard, Response};
use crate::{Ask, Error, Files, LlmOptions, Ranking, Result, ToolChoice, Tools, Vectors};

const NO_RANKING: &str = "it is no model that ranks, as Qwen3-Reranker, bge-reranker-v2-m3 and other encoders of one label are";

/// Why a model does not fill in.
pub const NO_INFILL: &str = "the model's tokenizer has no marks for filling in, as those of Qwen2.5-Coder, DeepSeek-Coder, \
                             CodeGemma, Granite, Seed-Coder and Codestral have";

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
    infill: Option<Infill>,
    /// Or why it makes none.
    vectors: Result<Vectors, String>,
    /// Or why there is none.
    ranking: Result<Ranking, String>,
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
        let vectors = files.vectors(None).and_then(|said| Vectors::of(&said, None));
        let ranking = files.ranking(&tokenizer);
        let model = Model::open(files.path(), &options.session)?;
        let engine = options.engine.clone().with_usual_room(&model);
        let engine = Engine::new(&model, &engine)?;
        let mut batching = BatcherOptions::of(&engine);
        batching.scheduler.most_running = batching.scheduler.most_running.min(options.parallel);
        (batching.gap, batching.speculate) = (options.gap, options.speculate);
        let mut batcher = Batcher::new(engine, &batching)?;
        let drafts = options.speculate != Speculate::Off && !batcher.engine().has_states();
        if let Some(name) = options.draft_model.as_ref().filter(|_| drafts) {
            let files = Files::find(name, &*options.progress)?;
            let precision = options.draft_precision;
            let (context, kv_cache) = (None, None);
            let session =
                &SessionOptions { precision, context, kv_cache, ..options.session.clone() };
            batcher = batcher.with_draft_model(&Model::open(files.path(), session)?)?;
        }
        let name = options.name.clone().unwrap_or_else(|| served_name(name));
        Self::new(&name, batcher, tokenizer, template, vectors, ranking)
    }

    /// A model called `name`, of its parts: what runs it, what makes tokens of text, and its chat template; how it makes
    /// vectors and ranks, or why it does not.
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
        ranking: Result<Option<Ranking>>,
    ) -> Result<Self> {
        let engine = batcher.engine();
        let pages = engine.statistics();
        let context = engine.context().min(pages.pages * pages.page_tokens);
        let config = engine.model().config().clone();
        let ranking =
            ranking.and_then(|it| it.ok_or_else(|| Error::Unsupported(NO_RANKING.into())));
        let ranking = ranking.and_then(|it| Ok(it.within(&config)?));
        let vectors = vectors.and_then(|it| it.check(config.hidden_size).map(|()| it));
        let vectors = vectors.map_err(|error| error.to_string());
        let is_for_chats = !ranking.as_ref().is_ok_and(Ranking::has_template);
        let makes_tokens = config.architecture.makes_tokens();
        let template = template.filter(|_| is_for_chats && makes_tokens);
        let ranking = ranking.map_err(|error| error.to_string());
        let worker = Worker::start(batcher, name);
        let worker = worker.map_err(|error| anyhow!(error).context("starting a thread"))?;
        let name = name.to_owned();
        let (vocab_size, eos) = (config.vocab_size, config.eos_token_ids.clone());
        let forms = Forms::new(tokenizer.clone(), vocab_size, eos);
        let infill = Infill::of(&tokenizer).filter(|_| makes_tokens);
        Ok(Self(Arc::new(Inner {
            name,
            config,
            tokenizer,
            template,
            infill,
            vectors,
            ranking,
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
    /// is out of range; a form that cannot be kept to, or tools that are in another form.
    pub fn chat<M: Serialize>(&self, messages: &[M], ask: &Ask) -> Result<Response> {
        let Inner { name, tokenizer, template, .. } = &*self.0;
        let no_template = || text::Error::NoChatTemplate { folder: Path::new(name).into() };
        let template = template.as_ref().ok_or_else(no_template)?;
        let no_tools = ask.tools.is_empty() && ask.tool_choice == ToolChoice::Auto;
        let mut tools =
            (!no_tools).then(|| Tools::new(&ask.tools, &ask.tool_choice)).transpose()?;
        let goes_on = ask.continue_final_message;
        if goes_on && tools.is_some() {
            let message =
                "`continue_final_message` and tools: words are gone on with, and no calls";
            return Err(Error::Unsupported(message.into()));
        }
        let options = RenderOptions {
            add_generation_prompt: !goes_on,
            continue_final_message: goes_on,
            tools: ask.tools.clone(),
            variables: ask.variables.clone(),
        };
        let mut prompt = template.prompt(messages, &options)?;
        if tools.is_some() && prompt.style().is_none() {
            let message =
                "the model's chat template writes calls of tools in a way that is not known";
            return Err(Error::Unsupported(message.into()));
        }
        if let Some(tools) = &mut tools {
            if ask.one_call {
                tools.call_one();
            }
            prompt = tools.called_in(template, prompt);
        }
        let tokens = tokenizer.encode_chat(&prompt.text)?;
        let detokenizer = tokenizer.detokenizer(&tokens).showing(prompt.special_ids(tokenizer));
        let stream = TextStream::new(detokenizer, StopStrings::new(&ask.stop)?);
        let start = self.forms().start_answer(&prompt, ask.form.clone(), tools)?;
        self.submit(tokens, ask, start, stream, Some(prompt.reply().joined()), &[])
    }

    /// What stands in `place`, as models of code have been trained to fill it in (Qwen2.5-Coder, DeepSeek-Coder and others).
    /// What the context has no room for [is left out](Infill::tokens), beside `max_tokens` of the answer, or as many as half of
    /// it holds.
    ///
    /// # Errors
    ///
    /// As [`complete`](Self::complete); the model's tokenizer has no marks for that.
    pub fn fill_in(&self, place: &Place<'_>, ask: &Ask) -> Result<Response> {
        let infill = self.infill()?;
        let answer = ask.max_tokens.unwrap_or(usize::MAX);
        let (prompt, _) = infill.tokens(place, self.context(), answer)?;
        let stream = self.stream(&prompt, ask)?;
        // A form says for itself where it ends.
        let ends = if ask.form.is_none() { infill.ends() } else { &[] };
        self.submit(prompt, ask, self.start(ask)?, stream, None, ends)
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
        let stream = self.stream(&prompt, ask)?;
        self.submit(prompt, ask, self.start(ask)?, stream, None, &[])
    }

    /// The text of what follows `prompt`.
    fn stream(&self, prompt: &[u32], ask: &Ask) -> Result<TextStream> {
        let detokenizer = self.0.tokenizer.detokenizer(prompt);
        Ok(TextStream::new(detokenizer, StopStrings::new(&ask.stop)?))
    }

    /// Where a text begins in the form that is asked for.
    fn start(&self, ask: &Ask) -> Result<Option<Start>> {
        Ok(ask.form.as_ref().map(|form| self.forms().start(form)).transpose()?)
    }

    /// Kept to what has its `start`; `ends` end it besides the model's own end of text.
    fn submit(
        &self,
        prompt: Vec<u32>,
        ask: &Ask,
        start: Option<Start>,
        stream: TextStream,
        reply: Option<Reply>,
        ends: &[u32],
    ) -> Result<Response> {
        let Inner { config, worker, .. } = &*self.0;
        let room = self.room(&prompt)?;
        if ask.ignore_eos && start.is_some() {
            let message = "`ignore_eos` and a form, or tools: forms and calls have an end";
            return Err(Error::Unsupported(message.into()));
        }
        let kept = start.map(|start| {
            let (constraint, failure) = start.constraint();
            (constraint, (start.name(), failure))
        });
        let (constraint, unkept) = kept.unzip();
        let max_tokens = ask.max_tokens.filter(|most| *most <= room);
        let is_open = max_tokens.is_none();
        let (heard, response) = Heard::new(self, prompt.clone(), stream, reply, unkept, is_open);
        let request = Request {
            prompt,
            max_tokens: max_tokens.unwrap_or(room),
            eos: if ask.ignore_eos {
                Vec::new()
            } else {
                [config.eos_token_ids.as_slice(), ends].concat()
            },
            likelihood: ask.likelihood,
            sampler: ask.sampling.clone().map(Sampler::new).transpose()?,
            constraint: constraint.map(|it| Box::new(it) as _),
            priority: ask.priority,
            ..Request::default()
        };
        worker.submit_all(vec![request], Box::new(heard));
        Ok(response)
    }

    /// The vector of `text`, `[hidden_size]` unless the model has layers behind, pooled as the model's files say (of its last token where they say nothing),
    /// of length 1 unless they say otherwise. A prompt that the model's files put before all texts is put there; others that they
    /// name (`Files::vectors` has them) are a part of the text.
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

    fn submit_text(&self, text: &str) -> Result<(Answer, &Vectors)> {
        let Inner { tokenizer, worker, .. } = &*self.0;
        let of = self.vectors().map_err(|why| Error::Unsupported(why.to_owned()))?;
        let prompt = tokenizer.encode(&of.text(text), true)?;
        let pooling = Some(of.pooling);
        Ok((worker.submit(Request { prompt, pooling, ..Request::default() }), of))
    }

    /// How well each of `documents` answers `query`, from 0 to 1: what the model's "yes" has beside its "no", or what an encoder
    /// makes of both texts. `instruction` says what they are to be good for; without one it is the model's own, and encoders take
    /// none.
    ///
    /// # Errors
    ///
    /// It is no model that ranks; a document and the query are longer than the context, or the model fails.
    pub async fn rank(
        &self,
        instruction: Option<&str>,
        query: &str,
        documents: &[impl AsRef<str>],
    ) -> Result<Vec<f64>> {
        let mut scores = Vec::with_capacity(documents.len());
        for (mut answer, score) in self.submit_documents(instruction, query, documents, None)? {
            let mut last = None;
            while let Some(piece) = answer.recv().await {
                last = Some(piece?);
            }
            scores.push(probability(last, &score)?);
        }
        Ok(scores)
    }

    /// As [`rank`](Self::rank), for whoever has nothing else to do.
    ///
    /// # Errors
    ///
    /// As `rank`.
    ///
    /// # Panics
    ///
    /// Within an asynchronous task of tokio, whose thread it would block.
    pub fn blocking_rank(
        &self,
        instruction: Option<&str>,
        query: &str,
        documents: &[impl AsRef<str>],
    ) -> Result<Vec<f64>> {
        self.blocking_rank_within(instruction, query, documents, None)
    }

    /// As [`blocking_rank`](Self::blocking_rank), of documents whose ends are cut off where there would be more than `most`
    /// tokens.
    ///
    /// # Errors
    ///
    /// As `rank`.
    ///
    /// # Panics
    ///
    /// As `blocking_rank`.
    pub fn blocking_rank_within(
        &self,
        instruction: Option<&str>,
        query: &str,
        documents: &[impl AsRef<str>],
        most: Option<usize>,
    ) -> Result<Vec<f64>> {
        let asked = self.submit_documents(instruction, query, documents, most)?;
        let scores = asked.into_iter().map(|(answer, score)| {
            let last = answer.into_iter().try_fold(None, |_, piece| piece.map(Some))?;
            probability(last, &score)
        });
        scores.collect()
    }

    fn submit_documents(
        &self,
        instruction: Option<&str>,
        query: &str,
        documents: &[impl AsRef<str>],
        most: Option<usize>,
    ) -> Result<Vec<(Answer, Score)>> {
        let ranking = self.ranking().map_err(|why| Error::Unsupported(why.to_owned()))?;
        let mut requests = Vec::with_capacity(documents.len());
        for document in documents {
            let asked = ranking.request(instruction, query, document.as_ref(), most)?;
            self.room(&asked.0.prompt)?;
            requests.push(asked);
        }
        let worker = &self.0.worker;
        Ok(requests.into_iter().map(|(request, score)| (worker.submit(request), score)).collect())
    }

    /// What keeps answers to a form: of requests to the [worker](Self::worker). Made in milliseconds, large ones and the first of
    /// a model in more.
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

    /// How it is asked to fill in.
    ///
    /// # Errors
    ///
    /// Its tokenizer has no marks for that.
    pub fn infill(&self) -> Result<&Infill> {
        self.0.infill.as_ref().ok_or_else(|| Error::Unsupported(NO_INFILL.into()))
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
    pub fn vectors(&self) -> Result<&Vectors, &str> {
        self.0.vectors.as_ref().map_err(String::as_str)
    }

    /// How it ranks documents.
    ///
    /// # Errors
    ///
    /// Why it does not.
    pub fn ranking(&self) -> Result<&Ranking, &str> {
        self.0.ranking.as_ref().map_err(String::as_str)
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
fn vector(last: Option<Piece>, of: &Vectors) -> Result<Vec<f32>> {
    let Some(Piece::Ended(Ended { vector: Some(vector), .. })) = last else {
        return Err(xla_session::Error::Stopped.into());
    };
    Ok(of.finish(vector, None))
}

/// That of a document whose request has ended so.
fn probability(last: Option<Piece>, score: &Score) -> Result<f64> {
    match last {
        Some(Piece::Ended(ended)) => score.probability(&ended),
        _ => Err(xla_session::Error::Stopped.into()),
    }
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

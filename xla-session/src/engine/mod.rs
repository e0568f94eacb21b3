//! Many sequences on one model: [`Engine::step`] runs rows (tokens) of any of them at once.
//!
//! A [`Model`] is shared, a [`Sequence`] is cheap: its tokens, and a table of the pages that hold their
//! keys and values. An [`Engine`] has the memory of the pages. On CPUs steps are
//! batch-invariant: the bits of what follows a token depend on the tokens before it (of an encoder on those of the
//! text), and on nothing else that is in the step, on where a prompt was cut or whether its beginning came from the cache. On
//! GPUs the last bits of sums may differ.

mod batch;
mod executor;
mod model;
mod options;
mod session;

pub(crate) use batch::Batch;
#[cfg(feature = "iree")]
pub(crate) use batch::Entry;
pub(crate) use executor::{Executor, Loaded};
pub use model::Model;
pub use options::EngineOptions;
pub use session::EngineSession;

use std::fmt;

use kernels::KV_BLOCK;

use crate::kv_share::{self, KvShare, SharedPages, SharedPrefix};
use crate::pages::{PagePool, PageTable, Reservation, Statistics};
use crate::sample::{argmax, suppress};
use crate::{Error, Profile, Result};

/// The pages of a KV cache, and what runs steps over them.
pub struct Engine {
    model: Model,
    executor: Box<dyn Executor>,
    pool: PagePool,
    rows: usize,
    context: usize,
    page_bytes: usize,
    encodes: bool,
    shared: Option<SharedPages>,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("model", &self.model)
            .field("rows", &self.rows)
            .field("context", &self.context)
            .finish_non_exhaustive()
    }
}

/// The tokens of one sequence, with their keys and values in the pages of an engine. Dropping it gives the
/// pages back; what of them the prefix cache knows stays until memory is needed.
#[derive(Debug)]
pub struct Sequence {
    table: PageTable,
    /// How many of its first pages need not be kept any more for other processes.
    kept: usize,
    /// Where its second text begins.
    second_text: Option<usize>,
}

/// Some tokens of a step.
#[derive(Debug)]
pub struct Run<'a> {
    /// The sequence that they are appended to.
    pub sequence: &'a mut Sequence,
    /// At least one.
    pub tokens: &'a [u32],
    /// What comes back.
    pub want: Want,
}

/// What is wanted of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Want {
    /// Nothing: more of the prompt follows.
    Nothing,
    /// The most likely token after the last one, of those that the model may generate.
    Token,
    /// The most likely token after each one, of the same.
    Tokens,
    /// The logits after the last one.
    Logits,
    /// The logits after each one.
    AllLogits,
    /// The hidden state of the last one: what an embedding model's vectors are made of.
    Hidden,
    /// The hidden state of each one.
    AllHidden,
}

/// What came of a run.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Output {
    /// Of [`Want::Nothing`].
    Nothing,
    /// Of [`Want::Token`]: the argmax of the logits, the lowest id on ties, but no
    /// [suppressed](checkpoint::config::ModelConfig::suppress_tokens) one.
    Token(u32),
    /// Of [`Want::Tokens`]: `[tokens of the run]`.
    Tokens(Vec<u32>),
    /// Of [`Want::Logits`]: `[vocab_size]`.
    Logits(Vec<f32>),
    /// Of [`Want::AllLogits`]: `[tokens of the run, vocab_size]`.
    AllLogits(Vec<f32>),
    /// Of [`Want::Hidden`]: the residual stream behind the last norm, `[hidden_size]`.
    Hidden(Vec<f32>),
    /// Of [`Want::AllHidden`]: `[tokens of the run, hidden_size]`.
    AllHidden(Vec<f32>),
}

impl Sequence {
    /// The tokens, oldest first.
    pub fn tokens(&self) -> &[u32] {
        self.table.tokens()
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there is no token yet.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// A second sequence with the same tokens. They share all pages, until one of them writes into the
    /// last.
    pub fn fork(&self) -> Self {
        Self { table: self.table.fork(), ..*self }
    }

    /// Tells an [encoder](checkpoint::architecture::Architecture::is_encoder) that reads two texts at once (a query and a
    /// document) where the second one begins. Others have no use for it.
    pub fn set_second_text(&mut self, position: Option<usize>) {
        self.second_text = position;
    }

    /// Forgets all but the first `tokens` tokens; or more, where layers keep a state and there is none of so
    /// many: [`len`](Self::len) says how many are left.
    pub fn truncate(&mut self, tokens: usize) {
        self.table.truncate(tokens);
        if self.table.is_empty() {
            self.second_text = None;
        }
        self.kept = self.kept.min(self.len() / KV_BLOCK);
    }

    /// Pages that `rows` more tokens would take.
    pub fn pages_needed(&self, rows: usize) -> usize {
        self.table.needed(rows)
    }
}

impl Engine {
    /// An engine for `model`.
    ///
    /// # Errors
    ///
    /// Options that the model cannot have, or no memory.
    pub fn new(model: &Model, options: &EngineOptions) -> Result<Self> {
        let loaded = model.loaded();
        let config = loaded.config();
        let (max, longest) = (config.max_position_embeddings, config.longest_context);
        let context = match options.context {
            None => max,
            Some(context) if (1..=max).contains(&context) => context,
            Some(context) => {
                return Err(Error::Unsupported(format!(
                    "a context of {context} tokens: the model was opened for 1 to {max}, and can be for up to {longest}"
                )));
            }
        };
        let most_rows = loaded.most_rows();
        let rows = options.rows.unwrap_or(most_rows);
        if rows == 0 || rows > most_rows {
            return Err(Error::Unsupported(format!(
                "steps of {rows} rows: this model was opened for 1 to {most_rows}"
            )));
        }
        // A text is run at once.
        let encodes = config.architecture.is_encoder();
        if encodes && options.context.is_some_and(|context| context > rows) {
            return Err(Error::Unsupported(format!(
                "a context of {context} tokens: an encoder takes a text at once, and steps have {rows} rows"
            )));
        }
        let context = if encodes { context.min(rows) } else { context };
        let (page_bytes, state_bytes) = (loaded.page_bytes(), loaded.state_bytes());
        let bytes = options.kv_bytes.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        let states = options.count_of_states(state_bytes);
        // Their places are 32-bit numbers to the kernels.
        let of_states = i32::try_from(states).ok().and(states.checked_mul(state_bytes));
        let of_states = of_states.ok_or_else(|| {
            Error::Unsupported(format!("{states} states of {state_bytes} bytes each: too many"))
        })?;
        let pages = match bytes {
            // One more, for the copy of a page that is shared.
            None => context.div_ceil(KV_BLOCK) + 1,
            Some(bytes) => bytes.saturating_sub(of_states) / page_bytes,
        };
        if pages == 0 {
            let states = match states {
                0 => String::new(),
                _ => format!(", and {states} states of sequences {of_states}"),
            };
            return Err(Error::Unsupported(format!(
                "a KV cache of {} bytes: a page of {KV_BLOCK} tokens takes {page_bytes}{states}",
                options.kv_bytes.unwrap_or(0),
            )));
        }
        // Slots are 32-bit numbers to the kernels.
        let pages = pages.min(i32::MAX as usize / KV_BLOCK);
        let executor = loaded.executor(pages, states)?;
        // What is known of tokens depends on those behind them.
        let pool = match options.prefix_cache && !encodes {
            cached if states > 0 => PagePool::with_states(pages, states, cached),
            true => PagePool::new(pages),
            false => PagePool::without_prefix_cache(pages),
        };
        if (states > 0 || encodes) && options.share.is_some() {
            let what = if encodes {
                "this model is an encoder: what it knows of a token is of no use to another text"
            } else {
                "layers of this model keep states, which no other process finds"
            };
            return Err(Error::Unsupported(format!("{what}: leave out shared pages")));
        }
        let share = |share: &KvShare| {
            let identity = loaded.page_identity().ok_or_else(|| {
                Error::Unsupported(
                    "pages are not shared here: the system does not say when the model's files and this \
                     program were last changed"
                        .into(),
                )
            })?;
            SharedPages::open(share, &identity, page_bytes)
        };
        let shared = options.share.as_ref().map(share).transpose()?;
        Ok(Self {
            model: model.clone(),
            executor,
            pool,
            rows,
            context,
            page_bytes,
            encodes,
            shared,
        })
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Most rows of a step.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Most tokens of a sequence.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Most tokens that a sequence could have, were the model opened for them.
    pub(crate) fn longest_context(&self) -> usize {
        let longest = self.model.config().longest_context;
        if self.is_encoder() { longest.min(self.model.most_rows()) } else { longest }
    }

    /// Counts of the pages, and of what was done with them.
    pub fn statistics(&self) -> Statistics {
        self.pool.statistics()
    }

    /// Whether layers keep a state of each sequence: then tokens at its end cannot be taken back one by one.
    pub fn has_states(&self) -> bool {
        self.model.state_bytes() > 0
    }

    /// How many sequences may be in steps together, if there is a bound: each has a state, and a step leaves one
    /// more of each.
    pub fn most_sequences(&self) -> Option<usize> {
        self.has_states().then(|| self.statistics().states / 2)
    }

    /// Bytes of a page, the keys and values of all layers together.
    pub fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// Bytes of the KV cache, in pages and states.
    pub fn kv_bytes(&self) -> usize {
        let Statistics { pages, states, .. } = self.statistics();
        pages * self.page_bytes + states * self.model.state_bytes()
    }

    /// The pages, for a [`Scheduler`](crate::scheduler) to look at.
    pub fn pages(&self) -> &PagePool {
        &self.pool
    }

    /// A sequence without tokens.
    pub fn sequence(&self) -> Sequence {
        Sequence { table: self.pool.table(), kept: 0, second_text: None }
    }

    /// What became of pages that other processes may find; `None` without [`EngineOptions::share`].
    pub fn share_statistics(&self) -> Option<kv_share::Statistics> {
        self.shared.as_ref().map(SharedPages::statistics)
    }

    /// Makes `sequence` begin as `prompt` does, with what it has of it or with pages that an earlier
    /// sequence has left, whichever is more, and behind those with pages that another process has
    /// [left](EngineOptions::share). Returns how many tokens of `prompt` it has then; at least the last is
    /// left to be run.
    ///
    /// # Errors
    ///
    /// A sequence of another engine.
    pub fn resume(&mut self, sequence: &mut Sequence, prompt: &[u32]) -> Result<usize> {
        let mut found = self.look_up(sequence, prompt)?;
        while self.fetch(sequence, prompt, &mut found) {}
        Ok(sequence.len())
    }

    /// As [`resume`](Self::resume), but for the pages of other processes: those are [fetched](Self::fetch),
    /// one at a time.
    ///
    /// # Errors
    ///
    /// A sequence of another engine.
    pub(crate) fn look_up(
        &mut self,
        sequence: &mut Sequence,
        prompt: &[u32],
    ) -> Result<SharedPrefix> {
        self.check_own(sequence)?;
        let held = sequence.table.resume(prompt);
        let Some(shared) = &self.shared else { return Ok(SharedPrefix::default()) };
        shared.look_up(prompt.len() - held / KV_BLOCK * KV_BLOCK);
        let mut names = shared.names(&prompt[..prompt.len().saturating_sub(1)]);
        let held = (held / KV_BLOCK).min(names.len());
        sequence.kept = names[..held].iter().take_while(|name| shared.has(name)).count();
        if names.get(held).is_none_or(|next| !shared.has(next)) {
            names.truncate(held);
            // What is in memory is used, too.
            shared.touch(&names);
        }
        Ok(SharedPrefix { names, held, end: held })
    }

    /// Reads the next page of `found`, which was looked up for `prompt`, into `sequence`. Returns whether there
    /// may be one more.
    pub(crate) fn fetch(
        &mut self,
        sequence: &mut Sequence,
        prompt: &[u32],
        found: &mut SharedPrefix,
    ) -> bool {
        let Some(shared) = self.shared.as_mut().filter(|_| found.has_more()) else { return false };
        let (table, at) = (&mut sequence.table, found.end);
        let mut fetch = || {
            let data = shared.find(&found.names[at])?;
            // The beginning of this page, if it has that.
            table.truncate(at * KV_BLOCK);
            let reservation = table.reserve(KV_BLOCK).ok()?;
            self.executor.write_page(reservation.pages()[at], data).ok()?;
            reservation.commit(&prompt[at * KV_BLOCK..][..KV_BLOCK]);
            Some(())
        };
        match fetch() {
            Some(()) => {
                found.end += 1;
                // Behind a page that is not kept it goes on being the next one to be.
                if sequence.kept + 1 == found.end {
                    sequence.kept = found.end;
                }
            }
            None => found.names.truncate(at),
        }
        if !found.has_more() {
            shared.found(&found.names, found.end - found.held);
        }
        found.has_more()
    }

    /// Appends the tokens of each run to its sequence, and returns what is wanted of it.
    ///
    /// # Errors
    ///
    /// A run without tokens, a token out of range, a sequence of another engine, more rows than
    /// [`rows`](Self::rows), a sequence that would be longer than its [`context`](Self::context), or fewer
    /// free pages or states than needed: before anything is run. Or the device's own failure. Every sequence is as it
    /// was.
    pub fn step(&mut self, runs: &mut [Run<'_>]) -> Result<Vec<Output>> {
        let outputs = self.step_unkept(runs)?;
        for run in runs.iter_mut() {
            self.keep_pages(run.sequence);
        }
        Ok(outputs)
    }

    /// As [`step`](Self::step), of runs that may have tokens that will be taken back: whoever calls
    /// [keeps](Self::keep_pages) what stays.
    pub(crate) fn step_unkept(&mut self, runs: &mut [Run<'_>]) -> Result<Vec<Output>> {
        self.check(runs)?;
        let wants: Vec<_> = runs.iter().map(|run| (run.want, run.tokens.len())).collect();
        let seconds: Vec<_> = runs.iter().map(|run| run.sequence.second_text).collect();
        let mut reserved: Vec<(Reservation<'_>, &[u32])> = Vec::with_capacity(runs.len());
        for run in &mut *runs {
            reserved.push((run.sequence.table.reserve(run.tokens.len())?, run.tokens));
        }
        let mut batch = Batch::default();
        for ((reservation, tokens), second) in reserved.iter().zip(seconds) {
            if let Some(copy) = reservation.copy() {
                self.executor.copy(copy)?;
            }
            batch.push(tokens, second, reservation);
        }
        let outputs = if batch.rows() == 0 {
            Vec::new()
        } else {
            self.executor.run(&batch)?;
            let outputs = self.outputs(&wants);
            // Also where a head failed: the pages below are given to others.
            self.executor.finish()?;
            outputs?
        };
        for (reservation, tokens) in reserved {
            reservation.commit(tokens);
        }
        Ok(outputs)
    }

    /// Keeps the pages of `sequence` for other processes that it has filled since the last time.
    pub(crate) fn keep_pages(&mut self, sequence: &mut Sequence) {
        let Some(shared) = &self.shared else { return };
        let table = &sequence.table;
        let filled = table.len() / KV_BLOCK;
        let pages = std::mem::replace(&mut sequence.kept, filled)..filled;
        if pages.is_empty() {
            return;
        }
        let names = shared.names(table.tokens());
        for page in pages {
            let number = table.pages()[page];
            shared.keep(&names[..=page], |data| self.executor.read_page(number, data));
        }
    }

    /// The logits after row `row` of the last step.
    pub(crate) fn logits_of(&mut self, row: usize, logits: &mut Vec<f32>) -> Result<()> {
        logits.clear();
        self.executor.logits(&[row], logits)
    }

    /// What has been run since the last look, when the model was opened with
    /// [`SessionOptions::profile`](crate::SessionOptions::profile).
    ///
    /// # Errors
    ///
    /// [`Unsupported`](Error::Unsupported) when it was opened without.
    pub fn take_profile(&mut self) -> Result<Profile> {
        self.executor.take_profile()
    }

    fn check_own(&self, sequence: &Sequence) -> Result<()> {
        if sequence.table.pool().is_same(&self.pool) {
            return Ok(());
        }
        let message = "a sequence of another engine: its keys and values are in other memory";
        Err(Error::Unsupported(message.into()))
    }

    /// Whether [hidden states](Want::Hidden) can be had, and so vectors of texts.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](Error::Unsupported) on GPUs.
    pub fn check_hidden(&self) -> Result<()> {
        if self.model.loaded().has_hidden() {
            return Ok(());
        }
        let message = "hidden states are not read from GPUs yet: leave out the device, or take \
                       local-task";
        Err(Error::Unsupported(message.into()))
    }

    /// Whether the model is an [encoder](checkpoint::architecture::Architecture::is_encoder): then a run is a whole text, of
    /// which hidden states come.
    pub fn is_encoder(&self) -> bool {
        self.encodes
    }

    /// Whether there are logits, and so tokens.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](Error::Unsupported) of an encoder, and of what ranks by a layer of its own.
    pub fn check_logits(&self) -> Result<()> {
        if self.model.config().architecture.makes_tokens() {
            return Ok(());
        }
        let message = match self.is_encoder() {
            true => "is an encoder: it makes vectors of texts (`iree-llm embed`), and no tokens",
            false => {
                "has no output projection: it ranks texts (`iree-llm rank`), and makes no tokens"
            }
        };
        Err(Error::Unsupported(format!("this model {message}")))
    }

    fn check(&self, runs: &[Run<'_>]) -> Result<()> {
        let vocab_size = self.model.config().vocab_size;
        let (context, max) = (self.context, self.longest_context());
        let (mut rows, mut needed) = (0, 0);
        for Run { sequence, tokens, want } in runs {
            self.check_own(sequence)?;
            if tokens.is_empty() {
                return Err(Error::EmptyPrompt);
            }
            if let Some(&token) = tokens.iter().find(|&&token| token as usize >= vocab_size) {
                return Err(Error::TokenOutOfRange { token, vocab_size });
            }
            let length = sequence.len() + tokens.len();
            if length > context {
                return Err(Error::ContextFull { needed: length, context, max });
            }
            match want {
                Want::Nothing => {}
                Want::Hidden | Want::AllHidden => self.check_hidden()?,
                Want::Token | Want::Tokens | Want::Logits | Want::AllLogits => {
                    self.check_logits()?;
                }
            }
            if self.is_encoder() && !sequence.is_empty() {
                let message = "an encoder runs a text at once: take a sequence of its own for each";
                return Err(Error::Unsupported(message.into()));
            }
            rows += tokens.len();
            needed += sequence.table.needed(tokens.len());
        }
        if rows > self.rows {
            return Err(Error::TooManyRows { rows, most: self.rows });
        }
        let free = self.pool.available();
        if needed > free {
            return Err(Error::OutOfPages { needed, free });
        }
        if self.has_states() {
            let (needed, free) = (runs.len(), self.pool.available_states());
            if needed > free {
                return Err(Error::OutOfStates { needed, free });
            }
        }
        Ok(())
    }

    /// Takes the next most likely token where the one after a row of the last step must not come.
    fn replace_suppressed(&mut self, rows: &[usize], tokens: &mut [u32]) -> Result<()> {
        let suppressed = &self.model.config().suppress_tokens;
        let mut logits = Vec::new();
        for (row, token) in rows.iter().zip(tokens) {
            if suppressed.contains(token) {
                logits.clear();
                self.executor.logits(&[*row], &mut logits)?;
                suppress(&mut logits, suppressed);
                *token = argmax(&logits);
            }
        }
        Ok(())
    }

    /// What is wanted of the rows that were run last.
    fn outputs(&mut self, wants: &[(Want, usize)]) -> Result<Vec<Output>> {
        let (mut first, mut picked, mut read, mut seen) = (0, Vec::new(), Vec::new(), Vec::new());
        for &(want, rows) in wants {
            let all = first..first + rows;
            let last = all.end - 1..all.end;
            match want {
                Want::Nothing => {}
                Want::Token => picked.extend(last),
                Want::Tokens => picked.extend(all),
                Want::Logits => read.extend(last),
                Want::AllLogits => read.extend(all),
                Want::Hidden => seen.extend(last),
                Want::AllHidden => seen.extend(all),
            }
            first += rows;
        }
        let (mut tokens, mut logits, mut hidden) = (Vec::new(), Vec::new(), Vec::new());
        if !picked.is_empty() {
            self.executor.tokens(&picked, &mut tokens)?;
            self.replace_suppressed(&picked, &mut tokens)?;
        }
        if !read.is_empty() {
            self.executor.logits(&read, &mut logits)?;
        }
        if !seen.is_empty() {
            self.executor.hidden(&seen, &mut hidden)?;
        }
        let (vocab_size, hidden_size) =
            (self.model.config().vocab_size, self.model.config().hidden_size);
        let mut tokens = tokens.into_iter();
        let (mut logits, mut hidden) = (logits.into_iter(), hidden.into_iter());
        let mut next = |rows: usize| logits.by_ref().take(rows * vocab_size).collect();
        let mut states = |rows: usize| hidden.by_ref().take(rows * hidden_size).collect();
        let outputs = wants.iter().map(|&(want, rows)| match want {
            Want::Nothing => Output::Nothing,
            Want::Token => Output::Token(tokens.next().unwrap_or(0)),
            Want::Tokens => Output::Tokens(tokens.by_ref().take(rows).collect()),
            Want::Logits => Output::Logits(next(1)),
            Want::AllLogits => Output::AllLogits(next(rows)),
            Want::Hidden => Output::Hidden(states(1)),
            Want::AllHidden => Output::AllHidden(states(rows)),
        });
        Ok(outputs.collect())
    }
}

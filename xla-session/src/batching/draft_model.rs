//! Drafts of a smaller model, for all streams of a batcher at once.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::time::{Duration, Instant};

use super::step_cost::StepCost;
use super::{Gap, RequestId};
use crate::engine::{Engine, EngineOptions, Model, Output, Run, Sequence, Want};
use crate::sample::{Sampler, suppress};
use crate::{Error, Result};

/// By how much vocabularies of one tokenizer differ at most: models round their number of rows up, and not all to
/// the same multiple (Qwen2.5 has 151936 or 152064).
const PADDING: usize = 256;

/// The part of a [`Gap`] that reading takes at most, of texts that the smaller model has not seen yet.
const READING: u32 = 4;

/// Tokens that are run with the first draft: those that a step brought, which are few.
const AT_ONCE: usize = 16;

/// What was drafted for each.
pub(super) type Drafts = Vec<(RequestId, Vec<u32>)>;

/// A stream that wants drafts.
pub(super) struct Stream<'a> {
    pub id: RequestId,
    /// Its text so far, of which the first `prompt` tokens are the prompt.
    pub tokens: &'a [u32],
    pub prompt: usize,
    /// What its tokens will be chosen by.
    pub sampler: Option<&'a Sampler>,
    /// Most tokens that it wants.
    pub most: usize,
}

/// A smaller model with the same tokenizer, and what it has read of each request.
///
/// Where tokens are sampled, it draws from its own logits with a copy of the sampler, which has the same random numbers
/// before it: the nearer the two models are, the more often both draw the same token.
pub(super) struct DraftModel {
    engine: Engine,
    /// Of the model that is drafted for.
    vocab_size: usize,
    sequences: HashMap<RequestId, Sequence>,
    /// Requests of which nothing is drafted any more: it has no room for their texts, or not their tokens, or makes no numbers
    /// of them.
    given_up: HashSet<RequestId>,
    /// Of its own steps.
    cost: StepCost,
}

impl fmt::Debug for DraftModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DraftModel").field("engine", &self.engine).finish_non_exhaustive()
    }
}

/// A stream while tokens are drafted for it.
struct Drafting<'a> {
    id: RequestId,
    sequence: Sequence,
    /// What runs next.
    new: Vec<u32>,
    prompt: &'a [u32],
    /// The answer so far, and the drafts.
    answer: Vec<u32>,
    sampler: Option<Sampler>,
    most: usize,
    drafts: Vec<u32>,
}

impl DraftModel {
    /// `model`, for that of `main`.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](Error::Unsupported): it makes no tokens, or none that can be taken back, or the vocabularies differ
    /// in size by more than their padding may. Those of [`Engine::new`].
    pub fn new(model: &Model, main: &Engine) -> Result<Self> {
        let context = main.context().min(model.config().max_position_embeddings);
        let kv_bytes = main.statistics().pages * model.page_bytes();
        let (context, kv_bytes) = (Some(context), Some(kv_bytes as u64));
        let options = EngineOptions { context, kv_bytes, ..EngineOptions::default() };
        let engine = Engine::new(model, &options)?;
        engine.check_logits()?;
        if engine.has_states() {
            let message = "layers of the draft model keep states, which cannot take a token back: \
                           give one of attention alone";
            return Err(Error::Unsupported(message.into()));
        }
        let vocab_size = main.model().config().vocab_size;
        let drafted = model.config().vocab_size;
        if drafted.abs_diff(vocab_size) > PADDING {
            return Err(Error::Unsupported(format!(
                "the draft model has a vocabulary of {drafted} tokens, the model one of {vocab_size}: \
                 give a draft model with the same tokenizer"
            )));
        }
        let (sequences, given_up) = (HashMap::new(), HashSet::new());
        Ok(Self { engine, vocab_size, sequences, given_up, cost: StepCost::default() })
    }

    /// What a draft of each of `streams` streams should take.
    pub fn round(&self, streams: usize) -> Duration {
        self.cost.expected(streams, 0)
    }

    /// Forgets requests that are no streams: they have ended, or wait again.
    pub fn retain(&mut self, is_stream: impl Fn(RequestId) -> bool) {
        self.sequences.retain(|id, _| is_stream(*id));
        self.given_up.retain(|id| is_stream(*id));
    }

    /// Drafts for `streams`, of all that it has read: of others it reads as much as `gap` has room for.
    /// Returns the drafts, and how long they took.
    ///
    /// # Errors
    ///
    /// Those of [`Engine::step`], but for numbers that are none, which end drafts of all of `streams`.
    pub fn draft(&mut self, streams: &[Stream<'_>], gap: Gap) -> Result<(Drafts, Duration)> {
        match self.draft_all(streams, gap) {
            Err(error @ Error::NotNumbers { .. }) => {
                tracing::warn!("no more drafts of answers that run now: {error}");
                streams.iter().for_each(|stream| drop(self.give_up(stream.id)));
                Ok((Vec::new(), Duration::ZERO))
            }
            drafted => drafted,
        }
    }

    fn draft_all(&mut self, streams: &[Stream<'_>], gap: Gap) -> Result<(Drafts, Duration)> {
        let mut rows = match gap {
            Gap::Rows(rows) => rows,
            Gap::Nothing => usize::MAX,
            Gap::Time(time) => self.cost.rows_beside(streams.len(), time / READING),
        };
        let mut drafting = Vec::new();
        for stream in streams {
            let Some(mut sequence) = self.sequence(stream) else { continue };
            if self.read(&mut sequence, stream.tokens, &mut rows)? {
                drafting.push(Drafting::new(stream, sequence));
            } else {
                self.sequences.insert(stream.id, sequence);
            }
        }
        let (mut drafts, mut took) = (Vec::new(), Duration::ZERO);
        loop {
            let (mut rows, mut pages) = (self.engine.rows(), self.engine.pages().available());
            let context = self.engine.context();
            let goes_on = |it: &Drafting<'_>| it.goes_on(context, &mut rows, &mut pages);
            let (going, over) = drafting.into_iter().partition::<Vec<_>, _>(goes_on);
            drafting = going;
            for it in over {
                drafts.push((it.id, it.drafts));
                self.sequences.insert(it.id, it.sequence);
            }
            if drafting.is_empty() {
                return Ok((drafts, took));
            }
            let began = Instant::now();
            let rows: usize = drafting.iter().map(|it| it.new.len()).sum();
            let mut runs: Vec<_> = drafting.iter_mut().map(Drafting::run).collect();
            let outputs = self.engine.step(&mut runs)?;
            let suppressed = &self.engine.model().config().suppress_tokens;
            for (it, output) in drafting.iter_mut().zip(outputs) {
                it.take(output, suppressed, self.vocab_size);
            }
            self.cost.stepped(drafting.len(), rows - drafting.len(), began.elapsed());
            took += began.elapsed();
        }
    }

    /// What it has of the text of `stream`, if it can have all of it.
    fn sequence(&mut self, Stream { id, tokens, .. }: &Stream<'_>) -> Option<Sequence> {
        let vocab_size = self.engine.model().config().vocab_size;
        if self.given_up.contains(id) {
            return None;
        }
        if tokens.len() > self.engine.context() {
            return self.give_up(*id);
        }
        let mut sequence = match self.sequences.remove(id) {
            Some(sequence) => sequence,
            None => {
                let mut sequence = self.engine.sequence();
                self.engine.resume(&mut sequence, tokens).ok()?;
                sequence
            }
        };
        // The last token is run with the first draft: it says what follows.
        let (_, before) = tokens.split_last()?;
        let held = sequence.tokens().iter().zip(before).take_while(|(mine, asked)| mine == asked);
        sequence.truncate(held.count());
        if tokens[sequence.len()..].iter().any(|token| *token as usize >= vocab_size) {
            return self.give_up(*id);
        }
        Some(sequence)
    }

    /// Nothing is drafted of `id` any more.
    fn give_up(&mut self, id: RequestId) -> Option<Sequence> {
        self.given_up.insert(id);
        self.sequences.remove(&id);
        None
    }

    /// Runs what `sequence` lacks of `tokens`, but for the last few, in at most `rows` rows. Returns whether that is all.
    fn read(&mut self, sequence: &mut Sequence, tokens: &[u32], rows: &mut usize) -> Result<bool> {
        loop {
            let behind = tokens.len() - sequence.len();
            if behind <= AT_ONCE.min(self.engine.rows()) {
                return Ok(true);
            }
            let piece = (behind - 1).min(*rows).min(self.engine.rows());
            if piece == 0 || sequence.pages_needed(piece) > self.engine.pages().available() {
                return Ok(false);
            }
            let began = Instant::now();
            let tokens = &tokens[sequence.len()..][..piece];
            self.engine.step(&mut [Run { sequence, tokens, want: Want::Nothing }])?;
            self.cost.stepped(0, piece, began.elapsed());
            *rows -= piece;
        }
    }
}

impl<'a> Drafting<'a> {
    fn new(stream: &Stream<'a>, sequence: Sequence) -> Self {
        let (prompt, answer) = stream.tokens.split_at(stream.prompt);
        Self {
            id: stream.id,
            new: stream.tokens[sequence.len()..].to_vec(),
            sequence,
            prompt,
            answer: answer.to_vec(),
            sampler: stream.sampler.cloned(),
            most: stream.most,
            drafts: Vec::new(),
        }
    }

    /// Whether one more is wanted, and there is room for it, which it takes.
    fn goes_on(&self, context: usize, rows: &mut usize, pages: &mut usize) -> bool {
        let (new, needed) = (self.new.len(), self.sequence.pages_needed(self.new.len()));
        let is_room = self.sequence.len() + new <= context && new <= *rows && needed <= *pages;
        let goes_on = self.drafts.len() < self.most && is_room;
        if goes_on {
            (*rows, *pages) = (*rows - new, *pages - needed);
        }
        goes_on
    }

    fn run(&mut self) -> Run<'_> {
        let want = if self.sampler.is_some() { Want::Logits } else { Want::Token };
        Run { sequence: &mut self.sequence, tokens: &self.new, want }
    }

    /// Takes what came of a run, of a model that must not say what is `suppressed`, for one of `vocab_size` tokens.
    fn take(&mut self, output: Output, suppressed: &[u32], vocab_size: usize) {
        let token = match (output, &mut self.sampler) {
            (Output::Logits(mut logits), Some(sampler)) => {
                suppress(&mut logits, suppressed);
                logits.resize(vocab_size, f32::NEG_INFINITY);
                sampler.sample(&mut logits, self.prompt, &self.answer)
            }
            (Output::Token(token), _) => token,
            (output, _) => unreachable!("{output:?} was not asked for"),
        };
        if token as usize >= vocab_size {
            // The other model has no such token, and what follows it is of no use.
            self.most = 0;
            return;
        }
        self.drafts.push(token);
        self.answer.push(token);
        self.new = vec![token];
    }
}

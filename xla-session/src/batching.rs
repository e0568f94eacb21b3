//! Many requests on one engine: a [`Batcher`] drives an [`Engine`] as a [`Scheduler`] plans.
//!
//! Who owns one calls [`submit`](Batcher::submit) and [`cancel`](Batcher::cancel) at any time, and
//! [`advance`](Batcher::advance) as long as it is not [idle](Batcher::is_idle). It does nothing by
//! itself: no threads, no files, no clock but for [`Timings`] and the
//! [`Gap`].
//!
//! A request gets the tokens that it gets alone ([`generate`](crate::generate())), whatever else
//! runs: on CPUs steps are [batch-invariant](crate::engine), and a sampler sees its own request only.
//!
//! A [`Worker`] is one on a thread of its own, for requests from anywhere.

mod answer;
mod draft_model;
mod guesses;
mod likelihood;
mod ngrams;
mod request;
mod sequences;
mod step_cost;
mod worker;

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::ops::ControlFlow;
use std::str::FromStr;
use std::time::{Duration, Instant};

use kernels::KV_BLOCK;

pub use self::answer::{Answer, Blocking, Piece};
use self::draft_model::DraftModel;
use self::guesses::Book;
pub use self::likelihood::Likelihood;
use self::request::Job;
pub use self::request::{Ended, Request, Timings};
use self::sequences::{Allowance, Sequences};
use self::step_cost::StepCost;
pub use self::worker::{Listener, Worker};
pub use crate::constraint::Constraint;
use crate::engine::{Engine, Model, Output, Run};
use crate::sample::suppress;
pub use crate::scheduler::RequestId;
use crate::scheduler::{self, Plan, Scheduler, SchedulerOptions, State};
use crate::{Error, FinishReason, Result};
use crate::{kv_share, pages};

/// How a [`Batcher`] makes its steps.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct BatcherOptions {
    /// Bounds of all of them.
    pub scheduler: SchedulerOptions,
    /// How long those may take in which streams go on.
    pub gap: Gap,
    /// Whether tokens are guessed, from the text of each request so far or by [a smaller
    /// model](Batcher::with_draft_model), and verified. Answers are the same.
    pub speculate: Speculate,
}

impl BatcherOptions {
    /// Steps of as many rows as `engine` takes.
    pub fn of(engine: &Engine) -> Self {
        let mut options = Self::default();
        let SchedulerOptions { rows, most_running, .. } = &mut options.scheduler;
        *rows = engine.rows();
        *most_running = (*most_running).min(*rows);
        options
    }
}

/// How many tokens are guessed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Speculate {
    /// None.
    #[default]
    Off,
    /// As many as pay, by what steps took.
    Auto,
    /// So many of each stream, whatever they cost.
    Fixed(usize),
}

impl Speculate {
    /// Most that can be asked for by its text: with the token before them they are a step.
    const MOST: usize = 255;
}

/// "auto", "off", or a number of tokens.
impl FromStr for Speculate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.parse()) {
            ("auto", _) => Ok(Self::Auto),
            ("off", _) => Ok(Self::Off),
            (_, Ok(tokens @ 1..=Self::MOST)) => Ok(Self::Fixed(tokens)),
            _ => Err(format!("known: auto, off, or a number of tokens from 1 to {}", Self::MOST)),
        }
    }
}

/// What bounds the gap between two tokens of a stream, which is a step: how much of prompts runs beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gap {
    /// So long at most, about, by what the steps before took: a fifth of it for each request that waits for its
    /// first token. Streams that take longer by themselves do, and prompts always get a few rows (9 to 16).
    Time(Duration),
    /// So many rows, however long they take: steps are then the same on any machine.
    Rows(usize),
    /// Nothing: steps are as full as they can be, and all answers together are there the soonest.
    Nothing,
}

/// How many requests have to wait for their first tokens until steps may take all of [`Gap::Time`].
///
/// One prompt holds the streams beside it up for the same time in all, in many short steps or in a few long ones,
/// of which they notice the short ones least. But a short step has hardly more rows than those of the streams: where
/// many prompts wait, each behind the ones before it, that costs them more than it spares the streams.
const WAITING: usize = 5;

impl Gap {
    /// What the next step may use of it, while `waiting` requests wait for their first tokens.
    fn while_waiting(self, waiting: usize) -> Self {
        let waiting = waiting.clamp(1, WAITING) as u32;
        let share = |time: Duration| time.saturating_mul(waiting) / WAITING as u32;
        if let Self::Time(time) = self { Self::Time(share(time)) } else { self }
    }

    /// How many pages are fetched before a step that `began`: for half of the time, or as many as rows would
    /// fill.
    fn fetches(self, began: Instant) -> Allowance {
        match self {
            Self::Time(time) => Allowance::new(usize::MAX, began.checked_add(time / 2)),
            Self::Rows(rows) => Allowance::new(rows.div_ceil(KV_BLOCK), None),
            Self::Nothing => Allowance::new(usize::MAX, None),
        }
    }
}

impl Default for Gap {
    /// A second: streams get five tokens a second beside one prompt, as fast as people read (250 words a
    /// minute), and one beside many.
    fn default() -> Self {
        Self::Time(Duration::from_secs(1))
    }
}

/// Requests that share an engine.
pub struct Batcher {
    engine: Engine,
    scheduler: Scheduler,
    jobs: HashMap<RequestId, Job>,
    gap: Gap,
    cost: StepCost,
    speculate: Speculate,
    /// What guesses, if not the text of each request does.
    draft_model: Option<DraftModel>,
    /// Of what guesses cost and gain.
    book: Book,
    drafts: DraftCounts,
    /// Rows that the last step was allowed beside streams.
    beside: usize,
    steps: u64,
    failures: u64,
    rows: u64,
}

impl fmt::Debug for Batcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batcher")
            .field("engine", &self.engine)
            .field("requests", &self.jobs.len())
            .finish_non_exhaustive()
    }
}

/// A token of an answer.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Token {
    /// What was chosen.
    pub id: u32,
    /// How likely it was, where the request [asks](Request::likelihood) for that.
    pub likelihood: Option<Likelihood>,
}

/// What became of drafts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DraftCounts {
    /// Tokens that were drafted and verified.
    pub drafted: usize,
    /// Those that were right.
    pub accepted: usize,
}

/// Counts of a [`Batcher`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Statistics {
    /// Requests that have a sequence.
    pub running: usize,
    /// Requests that wait, preempted ones among them.
    pub waiting: usize,
    /// Times that a request gave its pages back for others, since the start.
    pub preemptions: u64,
    /// Steps since the start.
    pub steps: u64,
    /// Steps that failed, in which nothing has happened.
    pub failures: u64,
    /// Tokens that they ran, of prompts and of answers.
    pub rows: u64,
    /// How many of prompts the last one could have run beside streams, for the [`Gap`].
    pub rows_beside: usize,
    /// Tokens that were [guessed](BatcherOptions::speculate).
    pub drafts: DraftCounts,
    /// The KV cache.
    pub pages: pages::Statistics,
    /// Its pages that other processes may find, if they may.
    pub share: Option<kv_share::Statistics>,
}

impl Batcher {
    /// No requests yet, for `engine`, in steps that `options` bound.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](Error::Unsupported): an option is below its least value, or there would be
    /// more rows than the engine takes.
    pub fn new(engine: Engine, options: &BatcherOptions) -> Result<Self> {
        let BatcherOptions { scheduler, gap, speculate } = options;
        if scheduler.rows > engine.rows() {
            return Err(Error::Unsupported(format!(
                "steps of {} rows: the engine was made for {}",
                scheduler.rows,
                engine.rows()
            )));
        }
        let mut scheduler = scheduler.clone();
        if engine.is_encoder() {
            // A text has to fit in.
            scheduler.rows = scheduler.rows.max(engine.context());
        }
        // Tokens that may turn out wrong could not be taken back.
        let speculate = if engine.has_states() { &Speculate::Off } else { speculate };
        if let Some(most) = engine.most_sequences() {
            scheduler.most_running = scheduler.most_running.min(most);
        }
        let scheduler = Scheduler::new(&scheduler, engine.pages().total())?;
        Ok(Self {
            engine,
            scheduler,
            jobs: HashMap::new(),
            gap: *gap,
            cost: StepCost::default(),
            speculate: *speculate,
            draft_model: None,
            book: Book::default(),
            drafts: DraftCounts::default(),
            beside: 0,
            steps: 0,
            failures: 0,
            rows: 0,
        })
    }

    /// Has tokens guessed by `model`, a smaller one with the same tokenizer, where they are
    /// [guessed](BatcherOptions::speculate) at all. Answers are the same. Its keys and values take memory for as many tokens as
    /// those of the engine.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](Error::Unsupported): the vocabularies differ in size by more than their padding may, or the smaller model makes no tokens, or keeps
    /// states of sequences. No memory.
    pub fn with_draft_model(mut self, model: &Model) -> Result<Self> {
        self.draft_model = Some(DraftModel::new(model, &self.engine)?);
        Ok(self)
    }

    /// Lets `request` wait for its turn.
    ///
    /// # Errors
    ///
    /// An empty prompt, a token out of range, a prompt longer than the context, or
    /// [`RequestTooLarge`](Error::RequestTooLarge) when its prompt and longest answer would not fit
    /// the KV cache if it were alone. [`Unsupported`](Error::Unsupported): a vector beside tokens or likelihoods, or on
    /// a device whose hidden states are not read.
    pub fn submit(&mut self, mut request: Request) -> Result<RequestId> {
        if request.pooling.is_none() {
            self.engine.check_logits()?;
        } else {
            self.engine.check_hidden()?;
            if request.prompt_likelihood.is_some() {
                let message = "a request makes a vector or likelihoods of its prompt";
                return Err(Error::Unsupported(message.into()));
            }
            if request.max_tokens > 0 || !request.answer.is_empty() {
                let message = "a request makes a vector or tokens: max_tokens has to be 0";
                return Err(Error::Unsupported(message.into()));
            }
        }
        let config = self.engine.model().config();
        let (vocab_size, max) = (config.vocab_size, self.engine.longest_context());
        let (mut prompt, priority) = (std::mem::take(&mut request.prompt), request.priority);
        if prompt.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        let (asked, answer) = (prompt.len(), std::mem::take(&mut request.answer));
        prompt.extend(&answer);
        if let Some(&token) = prompt.iter().find(|&&token| token as usize >= vocab_size) {
            return Err(Error::TokenOutOfRange { token, vocab_size });
        }
        let (needed, context) = (prompt.len(), self.engine.context());
        // The last token of an answer needs no room, also of one that is all there.
        let is_room = |room: &usize| *room > 0 || !answer.is_empty();
        let Some(room) = (context + 1).checked_sub(needed).filter(is_room) else {
            return Err(Error::ContextFull { needed, context, max });
        };
        let job = Job::new(asked, &answer, request, self.speculate != Speculate::Off);
        let max_new_tokens = job.left().min(room);
        if max_new_tokens == 0 && !answer.is_empty() {
            prompt.pop();
        }
        let id = self.scheduler.add(scheduler::Request { prompt, max_new_tokens, priority })?;
        self.jobs.insert(id, job);
        Ok(id)
    }

    /// Ends `request` at once, wherever it is. Returns whether there was such a request.
    pub fn cancel(&mut self, request: RequestId) -> bool {
        self.jobs.remove(&request);
        self.scheduler.finish(request)
    }

    /// Runs one step. Each new token goes to `on_token`, which may end its request there; returned
    /// are the requests that have ended, in no order. When nothing waits nothing is run.
    ///
    /// # Errors
    ///
    /// The device's own failure, or [`Request`](Error::Request): what comes of one is not numbers. No request is lost
    /// and no token: the next call tries the step again. Whoever sees it fail again and again cancels requests.
    pub fn advance(
        &mut self,
        on_token: &mut dyn FnMut(RequestId, Token) -> ControlFlow<()>,
    ) -> Result<Vec<(RequestId, Ended)>> {
        let advanced = self.step(on_token);
        if advanced.as_ref().is_err_and(|it| !matches!(it, Error::Request { .. })) {
            self.failures += 1;
        }
        advanced
    }

    fn step(
        &mut self,
        on_token: &mut dyn FnMut(RequestId, Token) -> ControlFlow<()>,
    ) -> Result<Vec<(RequestId, Ended)>> {
        let began = Instant::now();
        let gap = self.gap.while_waiting(self.scheduler.prompts());
        let drafting = self.draft(gap);
        let Self { engine, scheduler, jobs, .. } = self;
        let allowance = gap.fetches(began);
        let mut sequences = Sequences { engine, jobs, allowance };
        scheduler.fetch(&mut sequences);
        // What that took is not there for rows.
        let fetched = began.elapsed();
        self.beside = match gap {
            Gap::Rows(rows) => rows,
            Gap::Nothing => usize::MAX,
            Gap::Time(time) => {
                self.cost.rows_beside(scheduler.streams(), time.saturating_sub(fetched))
            }
        };
        let Plan { runs, preempted } = scheduler.schedule(&mut sequences, self.beside);
        if runs.is_empty() {
            let stuck = preempted.is_empty() && !scheduler.fetches() && !self.is_idle();
            return if stuck { Err(self.pages_held_by_others()) } else { Ok(Vec::new()) };
        }
        let mut of_requests: HashMap<_, _> = jobs.iter_mut().map(|(&id, it)| (id, it)).collect();
        let mut step: Vec<_> = runs
            .iter()
            .map(|run| {
                let job = of_requests.remove(&run.request).expect("it was submitted");
                let (sequence, want) = job.run(run);
                Run { sequence, tokens: &run.tokens, want }
            })
            .collect();
        let outputs = engine.step_unkept(&mut step).map_err(|error| of_request(error, &runs))?;
        let rows: usize = runs.iter().map(|run| run.tokens.len()).sum();
        self.steps += 1;
        self.rows += rows as u64;

        let before = self.drafts;
        let guessed = |run: &&scheduler::Run| self.jobs[&run.request].verifies(run);
        let guessed: usize = runs.iter().filter(guessed).map(|run| run.drafted).sum();
        let mut ended = Vec::new();
        for (run, output) in runs.iter().zip(outputs) {
            let reason = self.take(run, output, on_token);
            if let Some(sequence) =
                self.jobs.get_mut(&run.request).and_then(|job| job.sequence.as_mut())
            {
                self.engine.keep_pages(sequence);
            }
            if let Some(reason) = reason
                && let Some(job) = self.jobs.remove(&run.request)
            {
                self.scheduler.finish(run.request);
                ended.push((run.request, job.end(reason)));
            }
        }
        let streams = runs.iter().filter(|run| run.wanted && run.certain() == 1).count();
        let others = rows - streams - guessed;
        let took = began.elapsed() - fetched;
        let right = self.drafts.accepted - before.accepted;
        let expected = self.cost.expected(streams, others);
        self.book.stepped(streams, (guessed, right), expected, took, drafting);
        self.cost.stepped(streams + guessed, others, took);
        Ok(ended)
    }

    /// Whether there are no requests.
    pub fn is_idle(&self) -> bool {
        self.jobs.is_empty()
    }

    /// Requests that have not ended.
    pub fn requests(&self) -> usize {
        self.jobs.len()
    }

    /// What has been done so far.
    pub fn statistics(&self) -> Statistics {
        Statistics {
            running: self.scheduler.running(),
            waiting: self.scheduler.waiting(),
            preemptions: self.scheduler.preemptions(),
            steps: self.steps,
            failures: self.failures,
            rows: self.rows,
            rows_beside: self.beside,
            drafts: self.drafts,
            pages: self.engine.statistics(),
            share: self.engine.share_statistics(),
        }
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// The engine alone: requests that have not ended are gone, and what they held with them.
    pub fn into_engine(self) -> Engine {
        self.engine
    }

    /// Proposes what is known, or guessed, to come next. Returns how long a smaller model took for that.
    fn draft(&mut self, gap: Gap) -> Duration {
        let Self { engine, scheduler, jobs, draft_model, .. } = self;
        let streams = scheduler.streams();
        let round = draft_model.as_ref().map_or(Duration::ZERO, |it| it.round(streams));
        let (price, most) = match self.speculate {
            Speculate::Off => (None, 0),
            Speculate::Auto => (self.cost.price_of_row(streams, round), self.book.allows(streams)),
            Speculate::Fixed(count) => (None, count.min(engine.rows())),
        };
        let mut wanted = Vec::new();
        for (&id, job) in &mut *jobs {
            // These are right, but not always kept.
            let mut drafts = if engine.has_states() { Vec::new() } else { job.forced() };
            if let (Some(guesser), Some(tokens)) = (job.guesser(), scheduler.tokens(id))
                && most > 0
            {
                let count = match (self.speculate, price) {
                    (Speculate::Fixed(_), _) => most,
                    (_, Some(price)) => guesser.count(price, most),
                    // What a row costs is not known before the first step.
                    (_, None) => 0,
                };
                if draft_model.is_some() {
                    wanted.push((id, count));
                } else if guesser.read(tokens) {
                    drafts = guesser.look_up(tokens, count);
                }
            }
            scheduler.draft(id, drafts);
        }
        let Some(model) = draft_model else { return Duration::ZERO };
        model.retain(|id| scheduler.is_stream(id));
        let streams = wanted.iter().filter(|(id, _)| scheduler.is_stream(*id)).filter_map(|of| {
            let (id, job) = (of.0, jobs.get(&of.0)?);
            // The last token of an answer is no draft.
            let most = of.1.min(job.left().saturating_sub(1));
            let (tokens, sampler) = (scheduler.tokens(id)?, job.sampler.as_ref());
            (most > 0).then_some(draft_model::Stream {
                id,
                tokens,
                prompt: job.prompt,
                sampler,
                most,
            })
        });
        match model.draft(&streams.collect::<Vec<_>>(), gap) {
            Ok((drafts, took)) => {
                drafts.into_iter().for_each(|(id, drafts)| scheduler.draft(id, drafts));
                took
            }
            Err(error) => {
                tracing::error!("the draft model fails, and drafts no more: {error}");
                *draft_model = None;
                Duration::ZERO
            }
        }
    }

    /// Takes what came of a run. Returns why the request has ended, if it has.
    fn take(
        &mut self,
        run: &scheduler::Run,
        output: Output,
        on_token: &mut dyn FnMut(RequestId, Token) -> ControlFlow<()>,
    ) -> Option<FinishReason> {
        let config = self.engine.model().config();
        let (width, vocab_size) = (config.hidden_size, config.vocab_size);
        let job = self.jobs.get_mut(&run.request)?;
        if job.verifies(run) {
            return self.take_guessed(run, &output, on_token);
        }
        let on_token = &mut |token| on_token(run.request, token);
        // Drafted is only what is forced: it is right.
        let mut taken = run.tokens[run.certain()..].to_vec();
        for &id in &taken {
            if let Some(reason) = job.take(Token { id, likelihood: None }, on_token) {
                return Some(reason);
            }
        }
        let output = match output {
            Output::AllLogits(all) => {
                let tokens = self.scheduler.tokens(run.request)?;
                let last = job.look_at_prompt(run.start, tokens, &all, vocab_size);
                if run.wanted { Output::Logits(last) } else { Output::Nothing }
            }
            output => output,
        };
        let token = match output {
            Output::Token(id) => Some(job.likeliest(id)),
            Output::Logits(mut logits) => {
                suppress(&mut logits, &config.suppress_tokens);
                let (prompt, answer) = self.scheduler.tokens(run.request)?.split_at(job.prompt);
                // Answers are long, and mostly nothing is added.
                let answer = match &taken[..] {
                    [] => Cow::Borrowed(answer),
                    forced => Cow::Owned([answer, forced].concat()),
                };
                match job.choose(logits, prompt, &answer) {
                    None => return Some(FinishReason::Stop),
                    token => token,
                }
            }
            Output::Hidden(states) | Output::AllHidden(states) => {
                job.pool(&states, width);
                None
            }
            _ => None,
        };
        taken.extend(token.as_ref().map(|it| it.id));
        let state = self.scheduler.completed(run, &taken);
        let ended = token.and_then(|token| job.take(token, on_token));
        ended.or_else(|| (state == State::Finished).then(|| job.finish_reason()))
    }

    /// As [`take`](Self::take), where some of the run was guessed: of that stays what would have been chosen.
    fn take_guessed(
        &mut self,
        run: &scheduler::Run,
        output: &Output,
        on_token: &mut dyn FnMut(RequestId, Token) -> ControlFlow<()>,
    ) -> Option<FinishReason> {
        let config = self.engine.model().config();
        let vocab_size = config.vocab_size;
        let job = self.jobs.get_mut(&run.request)?;
        let (prompt, answer) = self.scheduler.tokens(run.request)?.split_at(job.prompt);
        let mut answer = answer.to_vec();
        let (before, mut ended) = (answer.len(), None);
        for row in run.certain() - 1..run.tokens.len() {
            let token = match output {
                Output::Tokens(ids) => Some(job.likeliest(ids[row])),
                Output::AllLogits(all) => {
                    let mut logits = all[row * vocab_size..][..vocab_size].to_vec();
                    suppress(&mut logits, &config.suppress_tokens);
                    job.choose(logits, prompt, &answer)
                }
                _ => None,
            };
            let Some(token) = token else {
                ended = Some(FinishReason::Stop);
                break;
            };
            let id = token.id;
            answer.push(id);
            ended = job.take(token, &mut |token| on_token(run.request, token));
            if ended.is_some() || run.tokens.get(row + 1) != Some(&id) {
                break;
            }
        }
        let taken = &answer[before..];
        let right = taken.len().saturating_sub(1);
        self.drafts.drafted += run.drafted;
        self.drafts.accepted += right;
        job.guesser()?.verified(run.drafted, right);
        job.sequence.as_mut()?.truncate(run.kept(taken.len()));
        if ended.is_some() {
            return ended;
        }
        let state = self.scheduler.completed(run, taken);
        (state == State::Finished).then(|| job.finish_reason())
    }

    /// Someone has adopted pages by [`PageTable::resume`](pages::PageTable::resume), for which a shared
    /// reference is enough.
    fn pages_held_by_others(&self) -> Error {
        let pages::Statistics { pages, held, .. } = self.engine.statistics();
        Error::Unsupported(format!(
            "no step fits (waiting requests: {}): {held} of {pages} pages of the KV cache belong to \
             sequences that are not theirs; drop those",
            self.jobs.len()
        ))
    }
}

/// `error` of a step of `runs`, as that of the request whose row it is of, if there is one.
fn of_request(error: Error, runs: &[scheduler::Run]) -> Error {
    let Error::NotNumbers { row, .. } = error else { return error };
    let ends = runs.iter().scan(0, |rows, run| {
        *rows += run.tokens.len();
        Some((*rows, run.request))
    });
    match ends.into_iter().find(|(end, _)| row < *end) {
        Some((_, request)) => Error::Request { request, source: Box::new(error) },
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_may_be_longer_while_more_requests_wait() {
        let milliseconds = |gap: Gap, waiting| match gap.while_waiting(waiting) {
            Gap::Time(time) => time.as_millis(),
            other => panic!("{other:?}"),
        };
        let times = [0, 1, 2, 4, 5, 6, 1_000_000].map(|it| milliseconds(Gap::default(), it));
        assert_eq!(times, [200, 200, 400, 800, 1000, 1000, 1000]);
        for gap in [Gap::Rows(7), Gap::Nothing] {
            assert_eq!(gap.while_waiting(3), gap);
        }
    }

    #[test]
    fn guesses_are_asked_for_by_a_number_or_a_name() {
        let known = ["auto", "off", "1", "255"].map(|it| it.parse::<Speculate>().unwrap());
        let fixed = Speculate::Fixed;
        assert_eq!(known, [Speculate::Auto, Speculate::Off, fixed(1), fixed(255)]);
        for wrong in ["", "on", "0", "256", "-1", "2.5"] {
            let error = wrong.parse::<Speculate>().unwrap_err();
            assert!(error.contains("auto, off"), "{error}");
        }
    }
}

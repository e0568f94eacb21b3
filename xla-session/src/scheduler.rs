//! Which requests run in the next step: pure decisions about tokens, rows and pages, without
//! tensors.
//!
//! A [`Scheduler`] holds requests and makes the [`Plan`] of one step after the other; who drives it
//! runs the plan and tells what came of it. In the order of the decisions:
//!
//! 1. Every request that is decoding runs its last token: one row each. There are never more of
//!    these than rows.
//! 2. Prompts fill the step, in the order of their ranks, piece by piece. While something decodes,
//!    they get as many rows in all as whoever drives it allows for this step: so the gap between two
//!    tokens of a stream is the time of a step of known size.
//!    A prompt that has to be [run whole](Pages::runs_whole) waits for a step that it fits into.
//!    One whose beginning lies elsewhere (files) has no part in this until it is brought in, a piece before each
//!    step.
//! 3. Waiting requests start in the order of their ranks, also before a prompt that runs already, if
//!    that ranks later, as long as there are pages for the prompt and one more. None overtakes another: while the first does not fit, none does. One whose next page a
//!    running request is about to fill waits for that, a step or few, and finds it in the prefix
//!    cache: of requests that come at once and begin alike, the first computes what is common.
//! 4. What is left of the rows goes to drafted tokens that are to be verified; up to half of them are kept
//!    for these.
//!
//! When a request that runs cannot have its next page, the running one that ranks last is
//! preempted: its pages are given back and it waits again, with all its tokens as its prompt, which
//! are run again when its turn comes (the prefix cache may still have them).
//!
//! **Ranks.** A rank is fixed when a request arrives: one of priority `p` ranks with those of
//! priority 0 that arrived `p * aging_steps` steps before it, so that a request that waits passes
//! one priority of later requests every [`aging_steps`](SchedulerOptions::aging_steps). Nobody is
//! starved: only finitely many requests ever rank before another, the first of all is never
//! preempted and fits if it runs alone, and a preempted request waits before all of its priority
//! that came after it.

mod request;
mod step;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};

use kernels::KV_BLOCK;

use crate::pages::CachedPrefix;
use crate::{Error, Result};
use request::{Rank, Tracked};
pub use request::{Request, RequestId, State};
pub use step::{Plan, Run};

/// Bounds of the steps that a [`Scheduler`] plans.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchedulerOptions {
    /// Most rows (tokens) of a step; at least `most_running`.
    pub rows: usize,
    /// Most requests that run at a time; at least 1.
    pub most_running: usize,
    /// Steps of waiting that are worth one priority; at least 1.
    pub aging_steps: u32,
}

impl Default for SchedulerOptions {
    fn default() -> Self {
        Self { rows: 256, most_running: 64, aging_steps: 256 }
    }
}

impl SchedulerOptions {
    fn check(&self) -> Result<()> {
        let number = |name: &str, value: usize, least: usize, why: &str| {
            if value >= least {
                return Ok(());
            }
            let message = format!("{name} is {value}: it must be at least {least}{why}");
            Err(Error::Unsupported(message))
        };
        number("the number of running requests", self.most_running, 1, "")?;
        let why = ", a row for every running request";
        number("the rows of a step", self.rows, self.most_running, why)?;
        number("the steps of aging", self.aging_steps as usize, 1, "")
    }
}

/// The pages of the sequences that run requests: what a [`Scheduler`] asks of an engine.
///
/// The scheduler starts and gives back sequences as it decides, so that each decision sees the
/// pages as they are then. It takes no other pages: those are taken by the step that it plans.
pub trait Pages {
    /// Pages that can be had now ([`PagePool::available`](crate::pages::PagePool::available)).
    fn available(&self) -> usize;

    /// Whether sequences have states: then steps end where pages do, if they can
    /// ([`PagePool::has_states`](crate::pages::PagePool::has_states)).
    fn has_states(&self) -> bool;

    /// Whether a prompt is run at once, as that of an encoder is; else piece by piece.
    fn runs_whole(&self) -> bool;

    /// Pages that `rows` more tokens of a started request would take
    /// ([`PageTable::needed`](crate::pages::PageTable::needed)).
    fn needed(&self, request: RequestId, rows: usize) -> usize;

    /// What `request` may leave out of `tokens`, for the prefix cache holds it
    /// ([`PagePool::cached_prefix`](crate::pages::PagePool::cached_prefix)); `None` where it runs all of them
    /// whatever others have run.
    fn cached_prefix(&self, request: RequestId, tokens: &[u32]) -> Option<CachedPrefix>;

    /// Makes a sequence for `request`, with what the prefix cache holds of `tokens`
    /// ([`PageTable::resume`](crate::pages::PageTable::resume)).
    fn start(&mut self, request: RequestId, tokens: &[u32]) -> Held;

    /// Brings in more of `tokens` that lies elsewhere, for the sequence of `request`: a part of it, so that
    /// those do not wait long that run beside it.
    fn fetch(&mut self, request: RequestId, tokens: &[u32]) -> Held;

    /// Drops the sequence of `request`, which waits from now on.
    fn give_back(&mut self, request: RequestId);
}

/// What a sequence has of the tokens of its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// How many, fewer than all.
    pub tokens: usize,
    /// Whether there may be more elsewhere, which is [fetched](Pages::fetch) before anything is run.
    pub more: bool,
}

/// Requests, and which of them runs when.
///
/// The loop around it: [`add`](Self::add) what has come, [`fetch`](Self::fetch),
/// [`schedule`](Self::schedule), run the plan, [`completed`](Self::completed) for each of its runs; [`finish`](Self::finish) at any time.
/// If the step fails, nothing is completed, and the next plan tries again.
#[derive(Debug)]
pub struct Scheduler {
    options: SchedulerOptions,
    total_pages: usize,
    waiting: BTreeMap<Rank, Tracked>,
    running: BTreeMap<Rank, Tracked>,
    ranks: HashMap<RequestId, Rank>,
    arrivals: u64,
    steps: u64,
    preemptions: u64,
}

impl Scheduler {
    /// No requests yet, for an engine with `total_pages` pages.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](Error::Unsupported) when an option is below its least value.
    pub fn new(options: &SchedulerOptions, total_pages: usize) -> Result<Self> {
        options.check()?;
        Ok(Self {
            options: options.clone(),
            total_pages,
            waiting: BTreeMap::new(),
            running: BTreeMap::new(),
            ranks: HashMap::new(),
            arrivals: 0,
            steps: 0,
            preemptions: 0,
        })
    }

    /// Lets `request` wait for its turn.
    ///
    /// # Errors
    ///
    /// [`EmptyPrompt`](Error::EmptyPrompt); [`RequestTooLarge`](Error::RequestTooLarge) when it
    /// could not run if it were alone.
    pub fn add(&mut self, request: Request) -> Result<RequestId> {
        if request.prompt.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        let id = RequestId(self.arrivals);
        let rank = Rank::new(self.steps, request.priority, self.options.aging_steps, id);
        let tracked = Tracked::new(id, request);
        let needed = tracked.most_pages();
        if needed > self.total_pages {
            return Err(Error::RequestTooLarge { needed, total: self.total_pages });
        }
        self.arrivals += 1;
        self.waiting.insert(rank, tracked);
        self.ranks.insert(id, rank);
        Ok(id)
    }

    /// Ends `request` at once, wherever it is: its client is gone, or its last token is one that
    /// stops. Returns whether there was such a request. Its sequence, if it has one, is the
    /// caller's to drop; [`completed`](Self::completed) for a run of it is of no consequence any
    /// more.
    pub fn finish(&mut self, request: RequestId) -> bool {
        let Some(rank) = self.ranks.remove(&request) else { return false };
        self.waiting.remove(&rank);
        self.running.remove(&rank);
        true
    }

    /// Proposes the tokens that may follow the last one of `request`, for the next step to verify.
    /// It takes as many of them, from the first, as it has rows and pages left; none if `request`
    /// is not decoding.
    pub fn draft(&mut self, request: RequestId, tokens: Vec<u32>) {
        let rank = self.ranks.get(&request);
        if let Some(tracked) = rank.and_then(|rank| self.running.get_mut(rank)) {
            tracked.drafts = tokens;
        }
    }

    /// Brings in what requests that have started find elsewhere, by their ranks.
    pub fn fetch(&mut self, pages: &mut impl Pages) {
        for tracked in self.running.values_mut().filter(|it| it.fetches) {
            tracked.hold(pages.fetch(tracked.id, &tracked.tokens));
        }
    }

    /// Whether more is to be brought in.
    pub fn fetches(&self) -> bool {
        self.running.values().any(|it| it.fetches)
    }

    /// The step has run `run`, and `sampled` are the tokens that follow: if one was wanted, the
    /// drafted tokens that were right and the one after them, else none. Returns the state of the
    /// request; one that has all its tokens is finished and forgotten, and its sequence is the
    /// caller's to drop.
    ///
    /// # Panics
    ///
    /// When `run` is not what this request was to do next, or `sampled` not what it wanted.
    pub fn completed(&mut self, run: &Run, sampled: &[u32]) -> State {
        let Some(rank) = self.ranks.get(&run.request) else { return State::Finished };
        let tracked = self.running.get_mut(rank).expect("a request that was scheduled is running");
        tracked.complete(run, sampled);
        if tracked.is_finished() {
            self.finish(run.request);
            return State::Finished;
        }
        State::Running
    }

    /// Where `request` is; one that is not known any more has finished.
    pub fn state(&self, request: RequestId) -> State {
        match self.ranks.get(&request) {
            None => State::Finished,
            Some(rank) if self.running.contains_key(rank) => State::Running,
            Some(rank) if self.waiting[rank].preempted => State::Preempted,
            Some(_) => State::Waiting,
        }
    }

    /// The tokens of `request`, prompt and answer, until it has finished.
    pub fn tokens(&self, request: RequestId) -> Option<&[u32]> {
        let rank = self.ranks.get(&request)?;
        let tracked = self.running.get(rank).or_else(|| self.waiting.get(rank))?;
        Some(&tracked.tokens)
    }

    /// Requests that run.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Requests that the next step runs one token of, unless they are preempted.
    pub fn streams(&self) -> usize {
        self.running.values().filter(|it| it.decodes()).count()
    }

    /// Whether `request` is one of them.
    pub fn is_stream(&self, request: RequestId) -> bool {
        let running = self.ranks.get(&request).and_then(|rank| self.running.get(rank));
        running.is_some_and(Tracked::decodes)
    }

    /// Requests that have no token yet, as their prompts wait or run, and preempted ones, whose tokens do.
    pub fn prompts(&self) -> usize {
        self.waiting() + self.running() - self.streams()
    }

    /// Requests that wait, preempted ones among them.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Times that a request was preempted, since the start.
    pub fn preemptions(&self) -> u64 {
        self.preemptions
    }
}

/// Pages that `tokens` tokens lie in.
fn pages_of(tokens: usize) -> usize {
    tokens.div_ceil(KV_BLOCK)
}

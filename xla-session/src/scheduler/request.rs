//! Requests, and how far each has come.

use super::step::Run;
use super::{Held, pages_of};

/// What a client asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Tokens to begin with; at least one.
    pub prompt: Vec<u32>,
    /// Most tokens of the answer; with 0 the prompt is run and no token is wanted.
    pub max_new_tokens: usize,
    /// Higher goes first.
    pub priority: i32,
}

/// Names a request of one scheduler; later ones are greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub(super) u64);

/// Where a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It has not started.
    Waiting,
    /// It has a sequence, and a part in steps.
    Running,
    /// It waits again: its pages were needed for others.
    Preempted,
    /// It has all its tokens, or was ended.
    Finished,
}

/// The order of requests, the least first: the step of arrival, moved back by the priority's worth
/// of steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    due: i128,
    arrival: RequestId,
}

impl Rank {
    pub fn new(step: u64, priority: i32, aging_steps: u32, arrival: RequestId) -> Self {
        let due = i128::from(step) - i128::from(priority) * i128::from(aging_steps);
        Self { due, arrival }
    }
}

/// A request that has not finished.
#[derive(Debug)]
pub(super) struct Tracked {
    pub id: RequestId,
    /// Prompt and answer so far.
    pub tokens: Vec<u32>,
    /// Tokens that its sequence holds, while it runs.
    pub computed: usize,
    /// Whether more of them are brought in from elsewhere.
    pub fetches: bool,
    /// Tokens of the answer still to come, at most.
    pub left: usize,
    /// Whether the answer has begun.
    pub streams: bool,
    pub preempted: bool,
    /// What may follow `tokens`.
    pub drafts: Vec<u32>,
}

impl Tracked {
    pub fn new(id: RequestId, request: Request) -> Self {
        Self {
            id,
            tokens: request.prompt,
            computed: 0,
            fetches: false,
            left: request.max_new_tokens,
            streams: false,
            preempted: false,
            drafts: Vec::new(),
        }
    }

    /// Tokens that the sequence lacks.
    pub fn behind(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// Whether all but the last token of the answer so far are in the sequence.
    pub fn decodes(&self) -> bool {
        self.streams && self.behind() == 1 && !self.fetches
    }

    /// Its sequence has what `held` says.
    pub fn hold(&mut self, held: Held) {
        assert!(held.tokens < self.tokens.len(), "{:?} holds all of its tokens", self.id);
        (self.computed, self.fetches) = (held.tokens, held.more);
    }

    /// Pages of all its tokens; the last of the answer is never run.
    pub fn most_pages(&self) -> usize {
        pages_of(self.tokens.len().saturating_add(self.left.saturating_sub(1)))
    }

    /// Pages that must be there for it to start: those of its tokens and one more, unless it
    /// never needs one more.
    pub fn pages_to_start(&self) -> usize {
        self.most_pages().min(pages_of(self.tokens.len()) + 1)
    }

    /// The next `rows` tokens that the sequence lacks.
    pub fn run(&self, rows: usize) -> Run {
        let end = self.computed + rows;
        Run {
            request: self.id,
            start: self.computed,
            tokens: self.tokens[self.computed..end].to_vec(),
            drafted: 0,
            wanted: end == self.tokens.len() && self.left > 0,
        }
    }

    /// Its pages are given back.
    pub fn give_back(&mut self) {
        (self.computed, self.fetches) = (0, false);
    }

    /// Its pages are given back for others.
    pub fn preempt(&mut self) {
        self.give_back();
        self.preempted = true;
        self.drafts.clear();
    }

    pub fn complete(&mut self, run: &Run, sampled: &[u32]) {
        assert_eq!(run.start, self.computed, "a run of {:?} that was not its next", self.id);
        let fits = if run.wanted { 1..=1 + run.drafted } else { 0..=0 };
        assert!(fits.contains(&sampled.len()), "{} tokens sampled of {run:?}", sampled.len());
        self.computed = run.kept(sampled.len());
        self.tokens.extend(sampled);
        self.left -= sampled.len();
        self.streams |= !sampled.is_empty();
        self.drafts.clear();
    }

    pub fn is_finished(&self) -> bool {
        self.left == 0 && (self.streams || self.behind() == 0)
    }
}

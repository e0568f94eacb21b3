//! The sequences of requests, as the scheduler sees them.

use std::collections::HashMap;
use std::time::Instant;

use super::Job;
use crate::engine::{Engine, Sequence};
use crate::kv_share::SharedPrefix;
use crate::pages::CachedPrefix;
use crate::scheduler::{Held, Pages, RequestId};

pub(super) struct Sequences<'a> {
    pub engine: &'a mut Engine,
    pub jobs: &'a mut HashMap<RequestId, Job>,
    pub allowance: Allowance,
}

/// How many pages are fetched before a step: one at least.
#[derive(Debug, Clone, Copy)]
pub(super) struct Allowance {
    most: usize,
    until: Option<Instant>,
    taken: usize,
}

impl Allowance {
    /// At most `most` pages, and none that would begin after `until`.
    pub fn new(most: usize, until: Option<Instant>) -> Self {
        Self { most: most.max(1), until, taken: 0 }
    }

    /// Takes a page of it, if there is one left.
    fn take(&mut self) -> bool {
        let in_time = || self.until.is_none_or(|until| Instant::now() < until);
        let open = self.taken == 0 || (self.taken < self.most && in_time());
        self.taken += usize::from(open);
        open
    }
}

impl Sequences<'_> {
    /// Whether a request has a use for what the prefix cache has run already.
    fn resumes(&self, request: RequestId) -> bool {
        self.jobs.get(&request).is_none_or(|job| !job.needs_all())
    }
}

impl Pages for Sequences<'_> {
    fn available(&self) -> usize {
        self.engine.pages().available()
    }

    fn has_states(&self) -> bool {
        self.engine.has_states()
    }

    fn runs_whole(&self) -> bool {
        self.engine.is_encoder()
    }

    fn needed(&self, request: RequestId, rows: usize) -> usize {
        let sequence = self.jobs.get(&request).and_then(|job| job.sequence.as_ref());
        sequence.map_or(0, |it: &Sequence| it.pages_needed(rows))
    }

    fn cached_prefix(&self, request: RequestId, tokens: &[u32]) -> Option<CachedPrefix> {
        let pages = self.engine.pages();
        let resumes = pages.has_prefix_cache() && self.resumes(request);
        resumes.then(|| pages.cached_prefix(tokens))
    }

    fn start(&mut self, request: RequestId, tokens: &[u32]) -> Held {
        let mut sequence = self.engine.sequence();
        let elsewhere = match self.resumes(request) {
            true => self.engine.look_up(&mut sequence, tokens).expect("a sequence of this engine"),
            false => SharedPrefix::default(),
        };
        let held = Held { tokens: sequence.len(), more: elsewhere.has_more() };
        if let Some(job) = self.jobs.get_mut(&request) {
            sequence.set_second_text(job.second_text);
            job.start(sequence, elsewhere);
        }
        held
    }

    fn fetch(&mut self, request: RequestId, tokens: &[u32]) -> Held {
        let Self { engine, jobs, allowance } = self;
        let job = jobs.get_mut(&request).expect("it was submitted");
        let (sequence, elsewhere) = job.fetching();
        while allowance.take() && engine.fetch(sequence, tokens, elsewhere) {}
        Held { tokens: sequence.len(), more: elsewhere.has_more() }
    }

    fn give_back(&mut self, request: RequestId) {
        if let Some(job) = self.jobs.get_mut(&request) {
            job.sequence = None;
        }
    }
}

//! The sequences of requests, as the scheduler sees them.

use std::collections::HashMap;

use super::Job;
use crate::engine::{Engine, Sequence};
use crate::pages::CachedPrefix;
use crate::scheduler::{Pages, RequestId};

pub(super) struct Sequences<'a> {
    pub engine: &'a mut Engine,
    pub jobs: &'a mut HashMap<RequestId, Job>,
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

    fn needed(&self, request: RequestId, rows: usize) -> usize {
        let sequence = self.jobs.get(&request).and_then(|job| job.sequence.as_ref());
        sequence.map_or(0, |it: &Sequence| it.pages_needed(rows))
    }

    fn cached_prefix(&self, request: RequestId, tokens: &[u32]) -> CachedPrefix {
        match self.resumes(request) {
            true => self.engine.pages().cached_prefix(tokens),
            false => CachedPrefix { tokens: 0, idle: 0 },
        }
    }

    fn start(&mut self, request: RequestId, tokens: &[u32]) -> usize {
        let mut sequence = self.engine.sequence();
        let cached = match self.resumes(request) {
            true => self.engine.resume(&mut sequence, tokens).expect("a sequence of this engine"),
            false => 0,
        };
        if let Some(job) = self.jobs.get_mut(&request) {
            job.start(sequence, cached);
        }
        cached
    }

    fn give_back(&mut self, request: RequestId) {
        if let Some(job) = self.jobs.get_mut(&request) {
            job.sequence = None;
        }
    }
}

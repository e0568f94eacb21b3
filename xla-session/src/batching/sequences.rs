//! The sequences of requests, as the scheduler sees them.

use std::collections::HashMap;

use super::Job;
use crate::engine::{Engine, Sequence};
use crate::pages::CachedPrefix;
use crate::scheduler::{Pages, RequestId};

pub(super) struct Sequences<'a> {
    pub engine: &'a Engine,
    pub jobs: &'a mut HashMap<RequestId, Job>,
}

impl Pages for Sequences<'_> {
    fn available(&self) -> usize {
        self.engine.pages().available()
    }

    fn needed(&self, request: RequestId, rows: usize) -> usize {
        let sequence = self.jobs.get(&request).and_then(|job| job.sequence.as_ref());
        sequence.map_or(0, |it: &Sequence| it.pages_needed(rows))
    }

    fn cached_prefix(&self, tokens: &[u32]) -> CachedPrefix {
        self.engine.pages().cached_prefix(tokens)
    }

    fn start(&mut self, request: RequestId, tokens: &[u32]) -> usize {
        let mut sequence = self.engine.sequence();
        let cached = self.engine.resume(&mut sequence, tokens).expect("a sequence of this engine");
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

//! What is asked for, and what became of it.

use std::time::{Duration, Instant};

use super::{Likelihood, Token};
use crate::FinishReason;
use crate::engine::{Sequence, Want};
use crate::pooling::{Pool, Pooling};
use crate::sample::{Sampler, argmax};
use crate::scheduler;

/// A prompt to go on with, and how.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// Tokens to begin with; at least one.
    pub prompt: Vec<u32>,
    /// Most tokens to generate; with 0 the prompt is run, for others to find in the prefix cache.
    pub max_tokens: usize,
    /// Ids that end the answer; none of them is part of it.
    pub eos: Vec<u32>,
    /// How to choose a token; `None` takes the most likely one (greedy).
    pub sampler: Option<Sampler>,
    /// Whether each token comes with how likely it was, and with how many of the most likely ones.
    pub likelihood: Option<usize>,
    /// Which hidden states of the prompt become a vector; with it `max_tokens` is 0.
    pub pooling: Option<Pooling>,
    /// Higher goes first.
    pub priority: i32,
}

/// How a request ended.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Ended {
    /// Why.
    pub reason: FinishReason,
    /// Of its prompt, where the request [asks](Request::pooling) for one: `[hidden_size]`.
    pub vector: Option<Vec<f32>>,
    /// When what happened.
    pub timings: Timings,
}

/// Where the time of a request went, from when it was submitted, and its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timings {
    /// Tokens of its prompt.
    pub prompt_tokens: usize,
    /// Those of them that the prefix cache had when it first started.
    pub cached_tokens: usize,
    /// Tokens of its answer.
    pub tokens: usize,
    /// Until it first started.
    pub waited: Duration,
    /// Until its first token; `None` of an answer without one.
    pub first_token: Option<Duration>,
    /// Until its end.
    pub total: Duration,
}

/// A request that has not ended.
pub(super) struct Job {
    /// Tokens of its prompt.
    pub prompt: usize,
    max_tokens: usize,
    pub eos: Vec<u32>,
    pub sampler: Option<Sampler>,
    pub likelihood: Option<usize>,
    pub pooling: Option<Pooling>,
    /// Of the part of the prompt that has been run.
    pool: Option<Pool>,
    /// While it runs.
    pub sequence: Option<Sequence>,
    submitted: Instant,
    /// Its first start, and what the prefix cache had then.
    started: Option<(Duration, usize)>,
    first_token: Option<Duration>,
    tokens: usize,
}

impl Job {
    /// `request`, whose prompt has `prompt` tokens.
    pub fn new(prompt: usize, request: Request) -> Self {
        let Request { max_tokens, eos, sampler, likelihood, pooling, .. } = request;
        Self {
            prompt,
            max_tokens,
            eos,
            sampler,
            likelihood,
            pooling,
            pool: None,
            sequence: None,
            submitted: Instant::now(),
            started: None,
            first_token: None,
            tokens: 0,
        }
    }

    /// It runs in `sequence`, which the prefix cache has begun with `cached` tokens.
    pub fn start(&mut self, sequence: Sequence, cached: usize) {
        self.sequence = Some(sequence);
        self.pool = self.pooling.map(Pool::new);
        self.started.get_or_insert_with(|| (self.submitted.elapsed(), cached));
    }

    /// What is wanted of `run`.
    pub fn want(&self, run: &scheduler::Run) -> Want {
        match self.pooling {
            Some(pooling) => pooling.want(run.start, run.start + run.tokens.len(), self.prompt),
            None if !run.wanted => Want::Nothing,
            None if self.sampler.is_none() && self.likelihood.is_none() => Want::Token,
            None => Want::Logits,
        }
    }

    /// Takes hidden states of its prompt, `[states, width]`.
    pub fn pool(&mut self, states: &[f32], width: usize) {
        if let Some(pool) = &mut self.pool {
            pool.add(states, width);
        }
    }

    /// Chooses the token that follows `prompt` and `answer`.
    pub fn choose(&mut self, mut logits: Vec<f32>, prompt: &[u32], answer: &[u32]) -> Token {
        // A sampler overwrites the logits, of which the model's own are asked for.
        let own = self.likelihood.map(|_| logits.clone());
        let id = match &mut self.sampler {
            Some(sampler) => sampler.sample(&mut logits, prompt, answer),
            None => argmax(&logits),
        };
        let likelihood = self.likelihood.zip(own).map(|(top, own)| Likelihood::of(id, top, &own));
        Token { id, likelihood }
    }

    /// One more token of the answer is known.
    pub fn took_token(&mut self) {
        self.first_token.get_or_insert_with(|| self.submitted.elapsed());
        self.tokens += 1;
    }

    /// Why it ends when it has all tokens that there is room for.
    pub fn finish_reason(&self) -> FinishReason {
        if self.tokens == self.max_tokens { FinishReason::Length } else { FinishReason::Context }
    }

    pub fn end(self, reason: FinishReason) -> Ended {
        let (waited, cached_tokens) = self.started.unwrap_or_default();
        let timings = Timings {
            prompt_tokens: self.prompt,
            cached_tokens,
            tokens: self.tokens,
            waited,
            first_token: self.first_token,
            total: self.submitted.elapsed(),
        };
        Ended { reason, vector: self.pool.map(Pool::finish), timings }
    }
}

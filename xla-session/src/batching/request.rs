//! What is asked for, and what became of it.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::guesses::Guesser;
use super::{Likelihood, Token};
use crate::FinishReason;
use crate::constraint::Constraint;
use crate::engine::{Sequence, Want};
use crate::kv_share::SharedPrefix;
use crate::pooling::{Pool, Pooling};
use crate::sample::{Sampler, argmax};
use crate::scheduler;

/// A prompt to go on with, and how.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// Tokens to begin with; at least one.
    pub prompt: Vec<u32>,
    /// Tokens of the answer that are there already: it goes on behind them as it would have, had it not
    /// been interrupted.
    pub answer: Vec<u32>,
    /// Most tokens of the answer; with 0 the prompt is run, for others to find in the prefix cache.
    pub max_tokens: usize,
    /// Ids that end the answer; none of them is part of it.
    pub eos: Vec<u32>,
    /// How to choose a token; `None` takes the most likely one (greedy).
    pub sampler: Option<Sampler>,
    /// Whether each token comes with how likely it was, and with how many of the most likely ones.
    pub likelihood: Option<usize>,
    /// Whether the end comes with how likely the tokens of the prompt were, and with how many of the most
    /// likely ones; then all of it is run, whatever the prefix cache has.
    pub prompt_likelihood: Option<usize>,
    /// What keeps the answer to a form.
    pub constraint: Option<Box<dyn Constraint>>,
    /// Which hidden states of the prompt become a vector; with it `max_tokens` is 0.
    pub pooling: Option<Pooling>,
    /// Where a second text begins in the prompt, of an encoder that reads
    /// [two](crate::engine::Sequence::set_second_text).
    pub second_text: Option<usize>,
    /// Higher goes first.
    pub priority: i32,
    /// What the answer is, whatever the model says: for measurements, whose steps it runs all the same.
    #[doc(hidden)]
    pub written: Option<Arc<[u32]>>,
}

/// How a request ended.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Ended {
    /// Why.
    pub reason: FinishReason,
    /// The token that ended the answer and is none of it, where there is one and the request asks [how
    /// likely](Request::likelihood) tokens are.
    pub eos: Option<Token>,
    /// Of its prompt, where the request [asks](Request::pooling) for one: `[hidden_size]`.
    pub vector: Option<Vec<f32>>,
    /// Of the tokens of its prompt behind the first, where the request
    /// [asks](Request::prompt_likelihood) for that: `[prompt tokens - 1]`.
    pub prompt: Option<Vec<Likelihood>>,
    /// When what happened.
    pub timings: Timings,
}

/// Where the time of a request went, from when it was submitted, and its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Timings {
    /// Tokens of its prompt.
    pub prompt_tokens: usize,
    /// Those of them that the prefix cache, and files, had when it first started.
    pub cached_tokens: usize,
    /// Tokens of its answer, those that it began with among them.
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
    /// Which of these has come, where it is asked how likely it was.
    eos_came: Option<Token>,
    pub sampler: Option<Sampler>,
    pub likelihood: Option<usize>,
    prompt_likelihood: Option<usize>,
    /// Of the part of the prompt that has been run.
    prompt_likelihoods: Vec<Likelihood>,
    constraint: Option<Box<dyn Constraint>>,
    /// What it has forced and has not come yet.
    forced: VecDeque<u32>,
    written: Option<Arc<[u32]>>,
    /// What guesses its tokens, where that is wanted.
    guesser: Option<Guesser>,
    /// Why nothing may follow the answer that it began with.
    over: Option<FinishReason>,
    pub pooling: Option<Pooling>,
    pub second_text: Option<usize>,
    /// Of the part of the prompt that has been run.
    pool: Option<Pool>,
    /// While it runs.
    pub sequence: Option<Sequence>,
    /// What of it is still to be fetched.
    elsewhere: SharedPrefix,
    submitted: Instant,
    /// How long it waited for its first start.
    waited: Option<Duration>,
    /// What the prefix cache and files had then.
    cached: Option<usize>,
    first_token: Option<Duration>,
    tokens: usize,
}

impl Job {
    /// `request`, whose prompt has `prompt` tokens, and of whose answer there is `answer`; its tokens may be
    /// guessed where it `speculates`.
    pub fn new(prompt: usize, answer: &[u32], request: Request, speculates: bool) -> Self {
        let Request { max_tokens, eos, sampler, likelihood, constraint, pooling, .. } = request;
        let Request { prompt_likelihood, second_text, written, .. } = request;
        // What a form allows is known of the next token only, and what it forces is better than a guess.
        let guesses = speculates && constraint.is_none() && max_tokens > 1;
        let mut job = Self {
            prompt,
            max_tokens,
            eos,
            eos_came: None,
            sampler,
            likelihood,
            prompt_likelihood,
            prompt_likelihoods: Vec::new(),
            constraint,
            forced: VecDeque::new(),
            written,
            guesser: guesses.then(Guesser::default),
            over: None,
            pooling,
            second_text,
            pool: None,
            sequence: None,
            elsewhere: SharedPrefix::default(),
            submitted: Instant::now(),
            waited: None,
            cached: None,
            first_token: None,
            tokens: answer.len(),
        };
        if answer.last().is_some_and(|last| job.eos.contains(last)) {
            job.over = Some(FinishReason::Eos);
        } else if let Some(constraint) = &mut job.constraint {
            // What follows is asked for where something does: until then it would be worked out for each token.
            match answer.iter().any(|&token| constraint.accept(token).is_break()) {
                true => job.over = Some(FinishReason::Stop),
                false => job.forced = constraint.forced().into(),
            }
        }
        job
    }

    /// Tokens that may follow the answer so far.
    pub fn left(&self) -> usize {
        if self.over.is_some() { 0 } else { self.max_tokens.saturating_sub(self.tokens) }
    }

    /// It runs in `sequence`, which the prefix cache has begun, and of which more is `elsewhere`.
    pub fn start(&mut self, sequence: Sequence, elsewhere: SharedPrefix) {
        self.sequence = Some(sequence);
        self.elsewhere = elsewhere;
        self.pool = self.pooling.map(Pool::new);
        self.prompt_likelihoods.clear();
        self.waited.get_or_insert_with(|| self.submitted.elapsed());
    }

    /// Its sequence, while it runs, and what of it is still to be fetched.
    pub fn fetching(&mut self) -> (&mut Sequence, &mut SharedPrefix) {
        let sequence = self.sequence.as_mut().expect("the scheduler has started it");
        (sequence, &mut self.elsewhere)
    }

    /// Its sequence, of which `run` runs the next rows, and what is wanted of them.
    pub fn run(&mut self, run: &scheduler::Run) -> (&mut Sequence, Want) {
        self.cached.get_or_insert(run.start);
        let want = self.want(run);
        (self.sequence.as_mut().expect("the scheduler has started it"), want)
    }

    fn want(&self, run: &scheduler::Run) -> Want {
        match self.pooling {
            Some(pooling) => pooling.want(run.start, run.start + run.tokens.len(), self.prompt),
            None if self.prompt_likelihood.is_some() && run.start + 1 < self.prompt => {
                Want::AllLogits
            }
            None if !run.wanted => Want::Nothing,
            None => match (self.reads_logits(), self.verifies(run)) {
                (true, true) => Want::AllLogits,
                (true, false) => Want::Logits,
                (false, true) => Want::Tokens,
                (false, false) => Want::Token,
            },
        }
    }

    /// Whether what is drafted in `run` was guessed, and may be wrong.
    pub fn verifies(&self, run: &scheduler::Run) -> bool {
        run.drafted > 0 && self.guesser.is_some()
    }

    /// What guesses its tokens while it runs, if anything does.
    pub fn guesser(&mut self) -> Option<&mut Guesser> {
        self.guesser.as_mut().filter(|_| self.sequence.is_some())
    }

    fn reads_logits(&self) -> bool {
        self.sampler.is_some() || self.likelihood.is_some() || self.constraint.is_some()
    }

    /// Whether all of its prompt has to be run, though the prefix cache may have it.
    pub fn needs_all(&self) -> bool {
        self.prompt_likelihood.is_some() || self.pooling.is_some_and(Pooling::needs_all)
    }

    /// Takes the logits of its tokens from `start` on, `[rows, vocab_size]`, of which `tokens` begins with its
    /// prompt. Returns those of the last row.
    pub fn look_at_prompt(
        &mut self,
        start: usize,
        tokens: &[u32],
        logits: &[f32],
        vocab_size: usize,
    ) -> Vec<f32> {
        if let Some(top) = self.prompt_likelihood {
            let next = tokens[..self.prompt].iter().skip(start + 1);
            let of = |(logits, &token)| Likelihood::of(token, top, logits);
            self.prompt_likelihoods.extend(logits.chunks_exact(vocab_size).zip(next).map(of));
        }
        logits[logits.len() - vocab_size..].to_vec()
    }

    /// Takes hidden states of its prompt, `[states, width]`.
    pub fn pool(&mut self, states: &[f32], width: usize) {
        if let Some(pool) = &mut self.pool {
            pool.add(states, width);
        }
    }

    /// Tokens that are known to come next, and need not be asked for one by one.
    pub fn forced(&self) -> Vec<u32> {
        // How likely a token was is for its own step to say.
        if self.likelihood.is_some() { Vec::new() } else { self.forced.iter().copied().collect() }
    }

    /// Chooses the token that follows `prompt` and `answer`; `None` where none may.
    pub fn choose(
        &mut self,
        mut logits: Vec<f32>,
        prompt: &[u32],
        answer: &[u32],
    ) -> Option<Token> {
        // A sampler overwrites the logits, of which the model's own are asked for.
        let own = self.likelihood.map(|_| logits.clone());
        let id = if let Some(&forced) = self.forced.front() {
            forced
        } else {
            if let Some(constraint) = &mut self.constraint
                && constraint.restrict(&mut logits).is_break()
            {
                return None;
            }
            match &mut self.sampler {
                Some(sampler) => sampler.sample(&mut logits, prompt, answer),
                None => argmax(&logits),
            }
        };
        let likelihood = self.likelihood.zip(own).map(|(top, own)| Likelihood::of(id, top, &own));
        Some(Token { id, likelihood })
    }

    /// The next token, the model's most likely one of which is `id`.
    pub fn likeliest(&self, id: u32) -> Token {
        let written = self.written.as_ref().and_then(|it| it.get(self.tokens).copied());
        Token { id: written.unwrap_or(id), likelihood: None }
    }

    /// Takes `token`, which is the next one, and gives it to `on_token`. Returns why the answer ends with
    /// it, if it does.
    pub fn take(
        &mut self,
        token: Token,
        on_token: &mut dyn FnMut(Token) -> ControlFlow<()>,
    ) -> Option<FinishReason> {
        let id = token.id;
        if self.eos.contains(&id) {
            self.eos_came = token.likelihood.is_some().then_some(token);
            return Some(FinishReason::Eos);
        }
        self.first_token.get_or_insert_with(|| self.submitted.elapsed());
        self.tokens += 1;
        let goes_on = self.goes_on_after(id);
        (on_token(token).is_break() || !goes_on).then_some(FinishReason::Stop)
    }

    /// Whether something may follow `token`.
    fn goes_on_after(&mut self, token: u32) -> bool {
        let Some(constraint) = &mut self.constraint else { return true };
        if constraint.accept(token).is_break() {
            return false;
        }
        self.forced.pop_front();
        if self.forced.is_empty() {
            self.forced = constraint.forced().into();
        }
        true
    }

    /// Why it ends when it has all tokens that there is room for.
    pub fn finish_reason(&self) -> FinishReason {
        match self.over {
            Some(reason) => reason,
            None if self.tokens >= self.max_tokens => FinishReason::Length,
            None => FinishReason::Context,
        }
    }

    pub fn end(self, reason: FinishReason) -> Ended {
        let timings = Timings {
            prompt_tokens: self.prompt,
            // What was found of an answer that goes on is none of the prompt's.
            cached_tokens: self.cached.unwrap_or_default().min(self.prompt),
            tokens: self.tokens,
            waited: self.waited.unwrap_or_default(),
            first_token: self.first_token,
            total: self.submitted.elapsed(),
        };
        let vector = self.pool.map(Pool::finish);
        let prompt = self.prompt_likelihood.map(|_| self.prompt_likelihoods);
        Ended { reason, eos: self.eos_came, vector, prompt, timings }
    }
}

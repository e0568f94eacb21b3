//! An answer as it comes, and what may end it.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use super::FinishReason;
use crate::Constraint;

/// The tokens so far.
pub(crate) struct Answer<'a> {
    /// Those of the context and those of the answer.
    tokens: Vec<u32>,
    /// How many are the context's.
    context: usize,
    max_tokens: usize,
    eos: &'a [u32],
    constraint: &'a mut Option<Box<dyn Constraint>>,
    /// What it has forced and has not come yet.
    forced: VecDeque<u32>,
    on_token: &'a mut dyn FnMut(u32) -> ControlFlow<()>,
    /// Why it ended.
    pub finish_reason: Option<FinishReason>,
    /// When the last token had been handed over.
    clock: Instant,
    /// Steps, and their time without what the callback takes.
    pub decode_tokens: usize,
    pub decode: Duration,
}

impl<'a> Answer<'a> {
    pub fn new(
        context: Vec<u32>,
        max_tokens: usize,
        eos: &'a [u32],
        constraint: &'a mut Option<Box<dyn Constraint>>,
        on_token: &'a mut dyn FnMut(u32) -> ControlFlow<()>,
    ) -> Self {
        let forced = constraint.as_mut().map(|it| it.forced().into()).unwrap_or_default();
        Self {
            context: context.len(),
            tokens: context,
            max_tokens,
            eos,
            constraint,
            forced,
            on_token,
            finish_reason: None,
            clock: Instant::now(),
            decode_tokens: 0,
            decode: Duration::ZERO,
        }
    }

    /// Those of the context and those of the answer.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Those of the context, and those of the answer.
    pub fn split(&self) -> (&[u32], &[u32]) {
        self.tokens.split_at(self.context)
    }

    /// How many more there may be.
    pub fn room(&self) -> usize {
        self.max_tokens - (self.tokens.len() - self.context)
    }

    /// The token that has to come next, if there is one.
    pub fn forced(&self) -> Option<u32> {
        self.forced.front().copied()
    }

    /// Makes the logits of tokens that may not come next −∞; breaks off where none may.
    pub fn restrict(&mut self, logits: &mut [f32]) -> ControlFlow<()> {
        match self.constraint {
            Some(constraint) => constraint.restrict(logits),
            None => ControlFlow::Continue(()),
        }
    }

    /// Adds a token, unless it is one that ends the text, as it does where none may come.
    pub fn push(&mut self, token: Option<u32>) -> ControlFlow<()> {
        self.finish_reason = token.map_or(Some(FinishReason::Stop), |token| self.end(token));
        self.clock = Instant::now();
        if self.finish_reason.is_some() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }

    /// Adds what a decode step gave.
    pub fn step(&mut self, token: Option<u32>) -> ControlFlow<()> {
        self.decode += self.clock.elapsed();
        self.decode_tokens += 1;
        self.push(token)
    }

    /// Those of the answer.
    pub fn into_tokens(mut self) -> Vec<u32> {
        self.tokens.split_off(self.context)
    }

    /// Breaks off where nothing may follow `token`.
    fn accept(&mut self, token: u32) -> ControlFlow<()> {
        let Some(constraint) = self.constraint else { return ControlFlow::Continue(()) };
        constraint.accept(token)?;
        self.forced.pop_front();
        if self.forced.is_empty() {
            self.forced = constraint.forced().into();
        }
        ControlFlow::Continue(())
    }

    fn end(&mut self, token: u32) -> Option<FinishReason> {
        if self.room() == 0 {
            return Some(FinishReason::Length);
        }
        if self.eos.contains(&token) {
            return Some(FinishReason::Eos);
        }
        self.tokens.push(token);
        let is_over = self.accept(token).is_break();
        if (self.on_token)(token).is_break() || is_over {
            return Some(FinishReason::Stop);
        }
        (self.room() == 0).then_some(FinishReason::Length)
    }
}

//! An answer as it comes, and what may end it.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use super::FinishReason;

/// The tokens so far.
pub(super) struct Answer<'a> {
    /// Those of the context and those of the answer.
    tokens: Vec<u32>,
    /// How many are the context's.
    context: usize,
    max_tokens: usize,
    eos: &'a [u32],
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
        on_token: &'a mut dyn FnMut(u32) -> ControlFlow<()>,
    ) -> Self {
        Self {
            context: context.len(),
            tokens: context,
            max_tokens,
            eos,
            on_token,
            finish_reason: None,
            clock: Instant::now(),
            decode_tokens: 0,
            decode: Duration::ZERO,
        }
    }

    /// The tokens of the context, and those of the answer.
    pub fn split(&self) -> (&[u32], &[u32]) {
        self.tokens.split_at(self.context)
    }

    /// How many more there may be.
    pub fn room(&self) -> usize {
        self.max_tokens - (self.tokens.len() - self.context)
    }

    /// Adds a token, unless it is one that ends the text.
    pub fn push(&mut self, token: u32) -> ControlFlow<()> {
        self.finish_reason = self.end(token);
        self.clock = Instant::now();
        if self.finish_reason.is_some() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }

    /// Adds what a decode step gave.
    pub fn step(&mut self, token: u32) -> ControlFlow<()> {
        self.decode += self.clock.elapsed();
        self.decode_tokens += 1;
        self.push(token)
    }

    /// Those of the answer.
    pub fn into_tokens(mut self) -> Vec<u32> {
        self.tokens.split_off(self.context)
    }

    fn end(&mut self, token: u32) -> Option<FinishReason> {
        if self.room() == 0 {
            return Some(FinishReason::Length);
        }
        if self.eos.contains(&token) {
            return Some(FinishReason::Eos);
        }
        self.tokens.push(token);
        if (self.on_token)(token).is_break() {
            return Some(FinishReason::Stop);
        }
        (self.room() == 0).then_some(FinishReason::Length)
    }
}

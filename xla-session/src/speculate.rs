//! Speculation without loss: several tokens are drafted, one step verifies them.
//!
//! Where a step takes as long as the weights take to be read, some rows cost hardly more than one. A
//! [`Drafter`] guesses what comes next, a step runs the last token and the guesses behind it, and of
//! these stay as many as are what would have been chosen anyway (Leviathan, Kalman, Matias: "Fast
//! Inference from Transformers via Speculative Decoding", 2023).
//!
//! **Greedy** tokens are equal to those without, since steps are [batch-invariant](crate::engine) on
//! CPUs: a row's bits do not depend on the rows beside it. **Sampled** tokens are as well, for the same seed: each is drawn from
//! the model's logits with the sampler and the random number that it would be drawn with anyway, and a
//! draft stays if it is that token. It does with the probability `p(draft)`, and what takes its place
//! where it does not is distributed as `p` without it: rejection sampling, for a draft that is certain.
//! The rule for drafts that are drawn from a distribution of their own keeps more of them (the sum of
//! `min(p, q)`), but takes random numbers as it goes: how many tokens are drafted follows the clock, and
//! so would the text. [`ModelDrafter`] draws with the numbers that the sampler is going to use, which
//! keeps most of these.

mod model;
mod ngram;
mod pace;

use std::time::Instant;

pub use model::ModelDrafter;
pub use ngram::NgramDrafter;
use pace::Pace;

use crate::generate::Answer;
use crate::sample::Sampler;
use crate::{InferenceSession, Result};

/// Guesses the next tokens. A guess that is wrong costs time and nothing else.
pub trait Drafter: Send {
    /// Said before the drafts of a generation: `tokens` are its context, which need not begin as the
    /// last one's did.
    ///
    /// # Errors
    ///
    /// As [`draft`](Self::draft).
    fn begin(&mut self, tokens: &[u32]) -> Result<()>;

    /// Appends to `drafts` at most `most` tokens that may follow `tokens`, which begin as they did
    /// when it was called last. `sampler` is what they will be chosen by; `None` takes the most likely.
    ///
    /// # Errors
    ///
    /// Those of what it asks.
    fn draft(
        &mut self,
        tokens: &[u32],
        sampler: Option<&Sampler>,
        most: usize,
        drafts: &mut Vec<u32>,
    ) -> Result<()>;
}

/// What became of drafts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DraftCounts {
    /// Tokens that were drafted and verified.
    pub drafted: usize,
    /// Those that were right.
    pub accepted: usize,
}

/// A drafter, and how many tokens it is asked for.
pub struct Speculation {
    drafter: Box<dyn Drafter>,
    pace: Pace,
    /// The last token, and drafts.
    rows: Vec<u32>,
    logits: Vec<f32>,
}

impl std::fmt::Debug for Speculation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Speculation").field("pace", &self.pace).finish_non_exhaustive()
    }
}

impl Speculation {
    /// Drafts as many tokens as the times of steps and the drafts that were right let pay: none where
    /// drafts are wrong, but for a hundredth of the time to see whether they still are.
    pub fn auto(drafter: impl Drafter + 'static) -> Self {
        Self::new(drafter, Pace::auto())
    }

    /// Drafts `tokens` tokens in every step.
    pub fn fixed(drafter: impl Drafter + 'static, tokens: usize) -> Self {
        Self::new(drafter, Pace::fixed(tokens))
    }

    fn new(drafter: impl Drafter + 'static, pace: Pace) -> Self {
        Self { drafter: Box::new(drafter), pace, rows: Vec::new(), logits: Vec::new() }
    }

    /// Appends `last`, which ends the answer, and what follows it: `most` tokens, unless the answer
    /// ends before; the last one is not appended.
    ///
    /// # Errors
    ///
    /// The session's or the drafter's. The context holds what belongs to the steps before.
    pub(crate) fn decode(
        &mut self,
        session: &mut dyn InferenceSession,
        mut sampler: Option<&mut Sampler>,
        mut last: u32,
        most: usize,
        answer: &mut Answer<'_>,
    ) -> Result<DraftCounts> {
        let mut counts = DraftCounts::default();
        self.drafter.begin(answer.tokens())?;
        self.pace.begin();
        let end = session.position() + most;
        while session.position() < end && answer.finish_reason.is_none() {
            let room = end - session.position() - 1;
            last = self.step(session, sampler.as_deref_mut(), last, room, answer, &mut counts)?;
        }
        Ok(counts)
    }

    /// Appends `last` and at most `room` drafts, of which those stay that are right. Returns the token
    /// that follows them.
    fn step(
        &mut self,
        session: &mut dyn InferenceSession,
        mut sampler: Option<&mut Sampler>,
        last: u32,
        room: usize,
        answer: &mut Answer<'_>,
        counts: &mut DraftCounts,
    ) -> Result<u32> {
        let Self { drafter, pace, rows, logits } = self;
        let start = Instant::now();
        let vocab_size = session.capabilities().vocab_size;
        rows.clear();
        rows.push(last);
        let most = pace.drafts(room);
        if most > 0 {
            drafter.draft(answer.tokens(), sampler.as_deref(), most, rows)?;
            rows.truncate(1 + most);
        }
        let mut likely = Vec::new();
        let mut kept = Kept { tokens: session.position(), session };
        match sampler {
            None => likely = kept.session.tokens(rows)?,
            Some(_) => {
                logits.clear();
                kept.session.all_logits(rows, &mut |row| logits.extend_from_slice(row))?;
            }
        }
        let took = start.elapsed();

        let (mut next, mut accepted) = (last, 0);
        for row in 0..rows.len() {
            kept.tokens += 1;
            next = match &mut sampler {
                None => likely[row],
                Some(sampler) => {
                    let logits = &mut logits[row * vocab_size..][..vocab_size];
                    kept.session.capabilities().suppress(logits);
                    let (prompt, generated) = answer.split();
                    sampler.sample(logits, prompt, generated)
                }
            };
            let right = rows.get(row + 1) == Some(&next);
            accepted += usize::from(right);
            if answer.step(Some(next)).is_break() || !right {
                break;
            }
        }
        let drafted = rows.len() - 1;
        pace.stepped(drafted, accepted, took);
        counts.drafted += drafted;
        counts.accepted += accepted;
        Ok(next)
    }
}

/// Forgets what is not kept of a context, also when a callback panics.
struct Kept<'a> {
    session: &'a mut dyn InferenceSession,
    tokens: usize,
}

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        self.session.truncate(self.tokens);
    }
}

#[cfg(test)]
mod tests;

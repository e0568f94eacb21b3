//! Drafts of a smaller model.

use std::fmt;

use super::Drafter;
use crate::sample::Sampler;
use crate::{Error, InferenceSession, Result};

/// By how much vocabularies of one tokenizer differ at most: models round their number of rows up, and not all to
/// the same multiple (Qwen2.5 has 151936 or 152064).
const PADDING: usize = 256;

/// Drafts what a smaller model with the same tokenizer says.
///
/// Where tokens are sampled, it draws from its own logits with a copy of the sampler, which has the same
/// random numbers before it: the nearer the two models are, the more often both draw the same token.
pub struct ModelDrafter {
    session: Box<dyn InferenceSession>,
    /// Of the model that is drafted for.
    vocab_size: usize,
    /// What the session's context holds.
    held: Vec<u32>,
    /// How many of these are known to begin the text.
    common: usize,
    logits: Vec<f32>,
}

impl fmt::Debug for ModelDrafter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelDrafter")
            .field("session", self.session.capabilities())
            .finish_non_exhaustive()
    }
}

impl ModelDrafter {
    /// Drafts by `session`, for a model of `vocab_size` tokens.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] when the vocabularies differ in size by more than their padding may.
    pub fn new(mut session: Box<dyn InferenceSession>, vocab_size: usize) -> Result<Self> {
        let drafted = session.capabilities().vocab_size;
        if drafted.abs_diff(vocab_size) > PADDING {
            return Err(Error::Unsupported(format!(
                "the draft model has a vocabulary of {drafted} tokens, the model one of {vocab_size}: \
                 give a draft model with the same tokenizer"
            )));
        }
        session.reset();
        Ok(Self { session, vocab_size, held: Vec::new(), common: 0, logits: Vec::new() })
    }

    /// Whether the smaller model has all of `tokens`.
    fn knows(&self, tokens: &[u32]) -> bool {
        let vocab_size = self.session.capabilities().vocab_size;
        tokens.iter().all(|token| (*token as usize) < vocab_size)
    }

    /// Forgets what of the context is not the beginning of `tokens`. Those that were `common` before are
    /// not compared again.
    fn rewind(&mut self, tokens: &[u32]) {
        let known = self.common.min(self.held.len()).min(tokens.len());
        let both = self.held[known..].iter().zip(&tokens[known..]);
        let kept = known + both.take_while(|(mine, asked)| mine == asked).count();
        self.held.truncate(self.session.truncate(kept));
        self.common = self.held.len();
    }
}

impl Drafter for ModelDrafter {
    fn begin(&mut self, tokens: &[u32]) -> Result<()> {
        self.common = 0;
        // The last token is run with the first draft: it says what follows.
        let Some((_, before)) = tokens.split_last() else { return Ok(()) };
        self.rewind(before);
        let new = &before[self.held.len()..];
        if !new.is_empty() && self.knows(new) && before.len() < self.session.capabilities().context
        {
            self.session.prefill(new)?;
            self.held.extend(new);
        }
        Ok(())
    }

    fn draft(
        &mut self,
        tokens: &[u32],
        sampler: Option<&Sampler>,
        most: usize,
        drafts: &mut Vec<u32>,
    ) -> Result<()> {
        // The last draft is not appended.
        let room = (self.session.capabilities().context + 1).saturating_sub(tokens.len());
        let most = most.min(room);
        let Some((_, before)) = tokens.split_last().filter(|_| most > 0) else { return Ok(()) };
        self.rewind(before);
        if !self.knows(&tokens[self.held.len()..]) {
            return Ok(());
        }
        let Self { session, held, logits, vocab_size, .. } = self;
        let mut sampler = sampler.cloned();
        let mut new = tokens[held.len()..].to_vec();
        let first = drafts.len();
        for _ in 0..most {
            let token = match &mut sampler {
                None => session.prefill(&new)?.token,
                Some(sampler) => {
                    session.logits(&new, logits)?;
                    session.capabilities().suppress(logits);
                    logits.resize(*vocab_size, f32::NEG_INFINITY);
                    sampler.sample(logits, tokens, &drafts[first..])
                }
            };
            held.append(&mut new);
            if token as usize >= *vocab_size {
                break;
            }
            drafts.push(token);
            new.push(token);
        }
        Ok(())
    }
}

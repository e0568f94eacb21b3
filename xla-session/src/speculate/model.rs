//! Drafts of a smaller model.

use super::Drafter;
use crate::sample::Sampler;
use crate::{Error, InferenceSession, Result};

/// Drafts what a smaller model with the same tokenizer says.
///
/// Where tokens are sampled, it draws from its own logits with a copy of the sampler, which has the same
/// random numbers before it: the nearer the two models are, the more often both draw the same token.
pub struct ModelDrafter {
    session: Box<dyn InferenceSession>,
    /// What the session's context holds.
    held: Vec<u32>,
    logits: Vec<f32>,
}

impl ModelDrafter {
    /// Drafts by `session`, for a model of `vocab_size` tokens.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] when the vocabularies differ in size.
    pub fn new(mut session: Box<dyn InferenceSession>, vocab_size: usize) -> Result<Self> {
        let drafted = session.capabilities().vocab_size;
        if drafted != vocab_size {
            return Err(Error::Unsupported(format!(
                "the draft model has a vocabulary of {drafted} tokens, the model one of {vocab_size}: \
                 give a draft model with the same tokenizer"
            )));
        }
        session.reset();
        Ok(Self { session, held: Vec::new(), logits: Vec::new() })
    }
}

impl Drafter for ModelDrafter {
    // What the contexts have in common is found with each draft.
    fn begin(&mut self, _: &[u32]) {}

    fn draft(
        &mut self,
        tokens: &[u32],
        sampler: Option<&Sampler>,
        most: usize,
        drafts: &mut Vec<u32>,
    ) -> Result<()> {
        let Self { session, held, logits } = self;
        let context = session.capabilities().context;
        // The last draft is not appended.
        let most = most.min((context + 1).saturating_sub(tokens.len()));
        if most == 0 {
            return Ok(());
        }
        let both = held.iter().zip(&tokens[..tokens.len() - 1]);
        let common = both.take_while(|(mine, asked)| mine == asked).count();
        held.truncate(session.truncate(common));
        let mut sampler = sampler.cloned();
        let mut new = tokens[held.len()..].to_vec();
        let first = drafts.len();
        for _ in 0..most {
            let token = match &mut sampler {
                None => session.prefill(&new)?.token,
                Some(sampler) => {
                    session.logits(&new, logits)?;
                    sampler.sample(logits, tokens, &drafts[first..])
                }
            };
            held.append(&mut new);
            drafts.push(token);
            new.push(token);
        }
        Ok(())
    }
}

//! A conversation so far, as tokens and as the text that a template made of it.

use crate::{Result, Tokenizer};

/// What a model was given and what it wrote.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Transcript {
    /// Every token so far.
    pub tokens: Vec<u32>,
    /// Their text.
    pub text: String,
}

impl Transcript {
    /// All tokens of the conversation `rendered`, if they begin with the first `held` tokens of this
    /// one, which the model has seen; `None` when the template has rewritten the past.
    ///
    /// # Errors
    ///
    /// The tokenizer fails.
    ///
    /// # Panics
    ///
    /// `held` is more tokens than there are.
    pub fn continued(
        &self,
        tokenizer: &Tokenizer,
        held: usize,
        rendered: &str,
    ) -> Result<Option<Vec<u32>>> {
        let held = &self.tokens[..held];
        let tokens = tokenizer.encode_chat(rendered)?;
        if tokens.len() > held.len() && tokens.starts_with(held) {
            return Ok(Some(tokens));
        }
        // The model may have written a text in other tokens than the tokenizer would. Text after
        // an added token is encoded on its own in any case, so the new part can be, too.
        let Some(rest) = rendered.strip_prefix(&self.text) else { return Ok(None) };
        let rest = tokenizer.encode(rest, false)?;
        let splits = rest.first().is_some_and(|&id| tokenizer.is_added(id));
        Ok(splits.then(|| [self.tokens.as_slice(), &rest].concat()))
    }
}

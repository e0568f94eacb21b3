//! The text of an answer while its tokens come.

use crate::{Detokenizer, Error, Result, StopStrings};

/// Turns tokens to text, up to the first stop string.
///
/// Text appears as soon as it is certain: not while it could be half a character or the beginning of
/// a stop string.
#[derive(Debug)]
pub struct TextStream {
    detokenizer: Detokenizer,
    stops: StopStrings,
    stopped: bool,
    failure: Option<Error>,
}

impl TextStream {
    /// The text of `detokenizer`, which ends before any of `stops`.
    pub fn new(detokenizer: Detokenizer, stops: StopStrings) -> Self {
        Self { detokenizer, stops, stopped: false, failure: None }
    }

    /// Takes a token and returns the text that is now certain, often empty, and whether nothing follows: a stop
    /// string has ended it, or the tokenizer fails, which [`finish`](Self::finish) tells.
    pub fn push(&mut self, id: u32) -> (String, bool) {
        if self.stopped {
            return (String::new(), true);
        }
        let text = self.detokenizer.push(id).unwrap_or_else(|error| {
            (self.stopped, self.failure) = (true, Some(error));
            String::new()
        });
        let (text, found) = self.stops.push(&text);
        self.stopped |= found;
        (text, self.stopped)
    }

    /// The stop string that ended it.
    pub fn stopped_by(&self) -> Option<&str> {
        self.stops.found()
    }

    /// Returns what was held back: no more tokens come.
    ///
    /// # Errors
    ///
    /// The tokenizer fails, or has failed at a token.
    pub fn finish(mut self) -> Result<String> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        if self.stopped {
            return Ok(String::new());
        }
        let (mut text, stopped) = self.stops.push(&self.detokenizer.finish()?);
        if !stopped {
            text += &self.stops.finish();
        }
        Ok(text)
    }
}

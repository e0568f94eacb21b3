//! The text of an answer while its tokens come.

use crate::{Detokenizer, Result, StopStrings};

/// Turns tokens to text, up to the first stop string.
///
/// Text appears as soon as it is certain: not while it could be half a character or the beginning of
/// a stop string.
#[derive(Debug)]
pub struct TextStream {
    detokenizer: Detokenizer,
    stops: StopStrings,
    stopped: bool,
}

impl TextStream {
    /// The text of `detokenizer`, which ends before any of `stops`.
    pub fn new(detokenizer: Detokenizer, stops: StopStrings) -> Self {
        Self { detokenizer, stops, stopped: false }
    }

    /// Takes a token and returns the text that is now certain, often empty, and whether a stop
    /// string ended it: nothing follows then.
    ///
    /// # Errors
    ///
    /// The tokenizer fails.
    pub fn push(&mut self, id: u32) -> Result<(String, bool)> {
        if self.stopped {
            return Ok((String::new(), true));
        }
        let (text, stopped) = self.stops.push(&self.detokenizer.push(id)?);
        self.stopped = stopped;
        Ok((text, stopped))
    }

    /// The stop string that ended it.
    pub fn stopped_by(&self) -> Option<&str> {
        self.stops.found()
    }

    /// Returns what was held back: no more tokens come.
    ///
    /// # Errors
    ///
    /// The tokenizer fails.
    pub fn finish(mut self) -> Result<String> {
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

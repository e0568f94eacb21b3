//! Token ids to text, piece by piece.

use crate::{Result, Tokenizer};

/// Tokens before the new ones that decide how these are decoded.
const CONTEXT: usize = 6;
/// A UTF-8 character has at most four bytes, so at most that many tokens; more are no character.
const LONGEST_CHARACTER: usize = 4;

/// Decodes tokens as they come; a character that spans tokens appears with its last one.
#[derive(Debug)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    ids: Vec<u32>,
    /// Where decoding starts.
    start: usize,
    /// Ids before this one have been given out.
    shown: usize,
    /// What has been given out of the others: whole characters, before one whose end is to come.
    given: String,
    /// How many tokens that one has so far.
    held: usize,
    /// Special tokens that are given out as they are written.
    special: Vec<u32>,
}

impl Detokenizer {
    pub(crate) fn new(tokenizer: Tokenizer, prompt: &[u32]) -> Self {
        // Some decoders strip the first token's space: a few tokens of context keep it.
        let mut start = prompt.len().saturating_sub(CONTEXT);
        // A run of bytes is decoded as a whole.
        while start > 0 && tokenizer.is_byte(prompt[start]) {
            start -= 1;
        }
        let ids = prompt[start..].to_vec();
        let shown = ids.len();
        let (given, special) = (String::new(), Vec::new());
        Self { tokenizer, ids, start: 0, shown, given, held: 0, special }
    }

    /// The same, with the special tokens `ids` as they are written; others are left out.
    pub fn showing(self, ids: Vec<u32>) -> Self {
        Self { special: ids, ..self }
    }

    /// Takes a token and returns the text that is now certain, often empty.
    ///
    /// # Errors
    ///
    /// The tokenizer fails.
    pub fn push(&mut self, id: u32) -> Result<String> {
        if self.special.contains(&id) {
            let mut text = self.pending()?;
            text += &self.tokenizer.written(id).unwrap_or_default();
            self.ids.push(id);
            self.show(self.start);
            return Ok(text);
        }
        if self.tokenizer.is_special(id) {
            return Ok(String::new());
        }
        self.ids.push(id);
        let mut text = self.pending()?;
        if text.is_empty() && self.given.is_empty() {
            // A first space: no part of the character that may follow.
            self.show(self.start);
            return Ok(text);
        }
        self.held += 1;
        let whole = text.trim_end_matches(char::REPLACEMENT_CHARACTER).len();
        if whole < text.len() {
            if whole > 0 {
                // The token ends one character and begins the next.
                self.held = 1;
            }
            if self.held < LONGEST_CHARACTER {
                text.truncate(whole);
                self.given += &text;
                return Ok(text);
            }
        }
        self.show(self.shown);
        Ok(text)
    }

    /// Returns what is left: an incomplete character, as U+FFFD.
    ///
    /// # Errors
    ///
    /// The tokenizer fails.
    pub fn finish(self) -> Result<String> {
        self.pending()
    }

    /// All ids have been given out; those behind decode behind the ones from `start` on.
    fn show(&mut self, start: usize) {
        self.start = start;
        self.shown = self.ids.len();
        self.given.clear();
        self.held = 0;
    }

    /// What has not been given out.
    fn pending(&self) -> Result<String> {
        let before = self.tokenizer.decode(&self.ids[self.start..self.shown])?;
        let all = self.tokenizer.decode(&self.ids[self.start..])?;
        Ok(behind(behind(&all, &before), &self.given).to_owned())
    }
}

/// What `all` has behind `before`.
fn behind<'a>(all: &'a str, before: &str) -> &'a str {
    all.strip_prefix(before).unwrap_or_else(|| {
        // An incomplete character at the end of the context became another one.
        let common = before.chars().zip(all.chars()).take_while(|(a, b)| a == b);
        &all[common.map(|(c, _)| c.len_utf8()).sum()..]
    })
}

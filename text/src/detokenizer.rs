//! Token ids to text, piece by piece.

use crate::{Result, Tokenizer};

/// Tokens before the new ones that decide how these are decoded.
const CONTEXT: usize = 6;
/// A UTF-8 character has at most four bytes, so at most that many tokens; more are no character.
const LONGEST_CHARACTER: usize = 4;

/// Decodes tokens as they come; a character that spans tokens appears with its last one.
#[derive(Debug)]
pub struct Detokenizer<'a> {
    tokenizer: &'a Tokenizer,
    ids: Vec<u32>,
    /// Where decoding starts.
    start: usize,
    /// Ids before this one have been given out.
    shown: usize,
    /// Special tokens that are given out as they are written.
    special: Vec<u32>,
}

impl<'a> Detokenizer<'a> {
    pub(crate) fn new(tokenizer: &'a Tokenizer, prompt: &[u32]) -> Self {
        // Some decoders strip the first token's space: a few tokens of context keep it.
        let ids = prompt[prompt.len().saturating_sub(CONTEXT)..].to_vec();
        let shown = ids.len();
        Self { tokenizer, ids, start: 0, shown, special: Vec::new() }
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
            self.shown = self.ids.len();
            return Ok(text);
        }
        if self.tokenizer.is_special(id) {
            return Ok(String::new());
        }
        self.ids.push(id);
        let text = self.pending()?;
        if text.is_empty() {
            // A first space: no part of the character that may follow.
            self.shown = self.ids.len();
            return Ok(text);
        }
        let complete = !text.ends_with(char::REPLACEMENT_CHARACTER);
        if !complete && self.ids.len() - self.shown < LONGEST_CHARACTER {
            return Ok(String::new());
        }
        self.start = self.shown;
        self.shown = self.ids.len();
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

    fn pending(&self) -> Result<String> {
        let before = self.tokenizer.decode(&self.ids[self.start..self.shown])?;
        let all = self.tokenizer.decode(&self.ids[self.start..])?;
        let new = match all.strip_prefix(&before) {
            Some(new) => new,
            // An incomplete character at the end of the context became another one.
            None => {
                let common = before.chars().zip(all.chars()).take_while(|(a, b)| a == b);
                &all[common.map(|(c, _)| c.len_utf8()).sum()..]
            }
        };
        Ok(new.to_owned())
    }
}

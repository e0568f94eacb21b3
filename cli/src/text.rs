//! Text to token ids and back, piece by piece.

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use tokenizers::Tokenizer;

// The library takes some damaged files and tokens for its own mistakes.
use crate::panics::catch;

/// A model's tokenizer.
pub struct Text {
    tokenizer: Tokenizer,
    path: PathBuf,
}

impl Text {
    /// The tokenizer of the model in `folder`; `None` when the folder has none.
    ///
    /// # Errors
    ///
    /// `tokenizer.json` is there but cannot be read or is no tokenizer.
    pub fn from_dir(folder: &Path) -> Result<Option<Self>> {
        let path = folder.join("tokenizer.json");
        if !path.exists() {
            return Ok(None);
        }
        let tokenizer = catch(|| Tokenizer::from_file(&path).map_err(|e| e.to_string()))
            .and_then(|loaded| loaded)
            .map_err(|e| anyhow!("{}: not a usable tokenizer: {e}", path.display()))?;
        Ok(Some(Self { tokenizer, path }))
    }

    /// The tokenizer of the model in `folder`.
    ///
    /// # Errors
    ///
    /// As [`from_dir`](Self::from_dir), or the folder has no tokenizer.
    pub fn require(folder: &Path) -> Result<Self> {
        Self::from_dir(folder)?.ok_or_else(|| {
            anyhow!(
                "{}: no such file: text needs the model's tokenizer; copy it into the model \
                 folder, or give token ids with --prompt-tokens",
                folder.join("tokenizer.json").display()
            )
        })
    }

    /// The ids of `text`; `special` adds what the tokenizer's post-processor adds (BOS, mostly).
    ///
    /// # Errors
    ///
    /// The tokenizer fails.
    pub fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>> {
        let encoding = catch(|| self.tokenizer.encode_fast(text, special))
            .and_then(|encoded| encoded.map_err(|e| e.to_string()))
            .map_err(|e| anyhow!("{}: cannot encode the text: {e}", self.path.display()))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The text of `ids`, special tokens left out.
    ///
    /// # Errors
    ///
    /// The tokenizer fails.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        catch(|| self.tokenizer.decode(ids, true))
            .and_then(|decoded| decoded.map_err(|e| e.to_string()))
            .map_err(|e| anyhow!("{}: cannot decode tokens: {e}", self.path.display()))
    }

    /// Whether `id` is an added token (BOS, a role's marker): text is split before it, whatever
    /// stands there.
    pub fn is_added(&self, id: u32) -> bool {
        self.tokenizer.get_added_tokens_decoder().contains_key(&id)
    }

    /// Decodes what follows `prompt` token by token.
    pub fn detokenizer<'a>(&'a self, prompt: &[u32]) -> Detokenizer<'a> {
        // Some decoders strip the first token's space: a few tokens of context keep it.
        let ids = prompt[prompt.len().saturating_sub(CONTEXT)..].to_vec();
        let shown = ids.len();
        Detokenizer { text: self, ids, start: 0, shown }
    }
}

/// Tokens before the new ones that decide how these are decoded.
const CONTEXT: usize = 6;
/// A UTF-8 character has at most four bytes, so at most that many tokens; more are no character.
const LONGEST_CHARACTER: usize = 4;

/// Decodes tokens as they come; a character that spans tokens appears with its last one.
pub struct Detokenizer<'a> {
    text: &'a Text,
    ids: Vec<u32>,
    /// Where decoding starts.
    start: usize,
    /// Ids before this one have been given out.
    shown: usize,
}

impl Detokenizer<'_> {
    /// Takes a token and returns the text that is now certain, often empty.
    ///
    /// # Errors
    ///
    /// The tokenizer fails.
    pub fn push(&mut self, id: u32) -> Result<String> {
        self.ids.push(id);
        let (text, complete) = self.pending()?;
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
        Ok(self.pending()?.0)
    }

    fn pending(&self) -> Result<(String, bool)> {
        let before = self.text.decode(&self.ids[self.start..self.shown])?;
        let all = self.text.decode(&self.ids[self.start..])?;
        let new = match all.strip_prefix(&before) {
            Some(new) => new,
            // An incomplete character at the end of the context became another one.
            None => {
                let common = before.chars().zip(all.chars()).take_while(|(a, b)| a == b);
                &all[common.map(|(c, _)| c.len_utf8()).sum()..]
            }
        };
        Ok((new.to_owned(), !new.is_empty() && !new.ends_with(char::REPLACEMENT_CHARACTER)))
    }
}

/// Ends text at the first of several strings, which may arrive in pieces.
pub struct StopStrings {
    stops: Vec<String>,
    held: String,
}

impl StopStrings {
    /// Stops at any of `stops`; with none of them, text passes through.
    ///
    /// # Errors
    ///
    /// One of them is empty.
    pub fn new(stops: &[String]) -> Result<Self> {
        if stops.iter().any(String::is_empty) {
            bail!("--stop: an empty string would stop before the first token");
        }
        Ok(Self { stops: stops.to_vec(), held: String::new() })
    }

    /// Takes text and returns what can be shown, and whether a stop string ended it.
    ///
    /// Text that may be the beginning of a stop string is held back.
    pub fn push(&mut self, text: &str) -> (String, bool) {
        self.held.push_str(text);
        if let Some(at) = self.stops.iter().filter_map(|stop| self.held.find(stop)).min() {
            self.held.truncate(at);
            return (std::mem::take(&mut self.held), true);
        }
        let keep = self.stops.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let shown = self.held.len() - keep;
        (self.held.drain(..shown).collect(), false)
    }

    /// Returns what was held back: no more text comes.
    pub fn finish(self) -> String {
        self.held
    }
}

/// Length in bytes of the longest proper beginning of `stop` that `text` ends with.
fn overlap(text: &str, stop: &str) -> usize {
    let starts = stop.char_indices().map(|(at, _)| at);
    starts.filter(|&len| text.ends_with(&stop[..len])).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    fn text() -> (tempfile::TempDir, Text) {
        let folder = tempfile::tempdir().unwrap();
        fixture::write_tokenizer(folder.path());
        let text = Text::require(folder.path()).unwrap();
        (folder, text)
    }

    fn stream(text: &Text, prompt: &[u32], ids: &[u32]) -> Vec<String> {
        let mut detokenizer = text.detokenizer(prompt);
        let mut pieces: Vec<_> = ids.iter().map(|&id| detokenizer.push(id).unwrap()).collect();
        pieces.push(detokenizer.finish().unwrap());
        pieces
    }

    #[test]
    fn what_the_library_panics_at_is_an_error() {
        let (folder, _) = text();
        let path = folder.path().join("tokenizer.json");
        let mut json: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        json["decoder"] = serde_json::Value::Null;
        // Cut in the middle of a decoder: the library unwraps what it cannot parse.
        let whole = json.to_string();
        let damaged = whole.replace(r#""decoder":null"#, r#""decoder":{"type":"Fuse"u}"#);
        assert_ne!(damaged, whole);
        std::fs::write(&path, damaged).unwrap();
        let Err(error) = Text::from_dir(folder.path()) else { panic!("it loads") };
        let error = error.to_string();
        assert!(error.contains("tokenizer.json: not a usable tokenizer: "), "{error}");
    }

    #[test]
    fn characters_that_span_tokens_appear_whole() {
        let (_folder, text) = text();
        for expected in ["fox", " a – b", "日本語", "🦊🦊", "naïve ", "\n\n x"] {
            let ids = text.encode(expected, false).unwrap();
            let pieces = stream(&text, &[], &ids);
            assert_eq!(pieces.concat(), expected);
            assert!(pieces.iter().all(|piece| !piece.contains('\u{fffd}')), "{pieces:?}");
        }
    }

    #[test]
    fn a_character_may_begin_in_the_prompt() {
        let (_folder, text) = text();
        let ids = text.encode("x🦊y", false).unwrap();
        let (prompt, rest) = ids.split_at(3);
        assert_eq!(stream(&text, prompt, rest).concat(), "🦊y");
    }

    #[test]
    fn a_space_before_the_first_new_word_is_kept() {
        // As sentencepiece models do: the first word's space is not shown.
        let metaspace = serde_json::json!({
            "type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true
        });
        let tokenizer = serde_json::json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
            "normalizer": null, "pre_tokenizer": metaspace, "post_processor": null,
            "decoder": metaspace,
            "model": {"type": "WordLevel", "vocab": {"▁one": 0, "▁two": 1}, "unk_token": "▁one"},
        });
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
        let text = Text::require(folder.path()).unwrap();
        assert_eq!(stream(&text, &[0], &[1, 0, 1]).concat(), " two one two");
        assert_eq!(stream(&text, &[], &[1, 0]).concat(), "two one");
    }

    #[test]
    fn bytes_that_are_no_character_do_not_hold_text_back_for_ever() {
        let (_folder, text) = text();
        let lead = text.encode("🦊", false).unwrap()[0];
        let mut detokenizer = text.detokenizer(&[]);
        let shown: String = (0..12).map(|_| detokenizer.push(lead).unwrap()).collect();
        assert!(shown.starts_with('\u{fffd}'));
        let mut detokenizer = text.detokenizer(&[]);
        assert_eq!(detokenizer.push(lead).unwrap(), "");
        assert_eq!(detokenizer.finish().unwrap(), "\u{fffd}");
    }

    #[test]
    fn special_tokens_are_added_on_demand_and_never_shown() {
        let (_folder, text) = text();
        let ids = text.encode("ab", true).unwrap();
        assert_eq!(ids[0], fixture::BOS);
        assert_eq!(text.encode("ab", false).unwrap(), ids[1..]);
        assert_eq!(text.decode(&ids).unwrap(), "ab");
        assert!(text.is_added(fixture::BOS) && !text.is_added(ids[1]));
    }

    #[test]
    fn a_damaged_tokenizer_is_named() {
        let folder = tempfile::tempdir().unwrap();
        assert!(Text::from_dir(folder.path()).unwrap().is_none());
        let error = Text::require(folder.path()).err().unwrap().to_string();
        assert!(error.contains("tokenizer.json") && error.contains("--prompt-tokens"), "{error}");
        std::fs::write(folder.path().join("tokenizer.json"), "{").unwrap();
        let error = Text::from_dir(folder.path()).err().unwrap().to_string();
        assert!(error.contains("tokenizer.json"), "{error}");
    }

    fn run(stops: &[&str], pieces: &[&str]) -> (Vec<String>, bool) {
        let stops: Vec<_> = stops.iter().map(|&s| s.to_owned()).collect();
        let mut stop = StopStrings::new(&stops).unwrap();
        let mut shown = Vec::new();
        for piece in pieces {
            let (text, stopped) = stop.push(piece);
            shown.push(text);
            if stopped {
                return (shown, true);
            }
        }
        shown.push(stop.finish());
        (shown, false)
    }

    #[test]
    fn stop_strings_may_span_pieces() {
        assert_eq!(
            run(&["END"], &["ab E", "N", "D cd"]),
            (vec!["ab ".into(), "".into(), "".into()], true)
        );
        let (shown, stopped) = run(&["END"], &["ab E", "N", "e"]);
        assert_eq!((shown.concat().as_str(), stopped), ("ab ENe", false));
        assert_eq!(shown[0], "ab ");
    }

    #[test]
    fn the_earliest_stop_string_wins_and_what_is_held_comes_out() {
        assert_eq!(run(&["yy", "x"], &["ab yyx"]).0, ["ab "]);
        assert_eq!(run(&["xyz", "y"], &["a x", "y"]), (vec!["a ".into(), "x".into()], true));
        assert_eq!(run(&["\n\n"], &["a\n", "b\n"]).0, ["a", "\nb", "\n"]);
        assert_eq!(run(&["aab"], &["a", "a", "a", "b"]).0.concat(), "a");
        assert_eq!(run(&["–x"], &["a –", "y"]).0, ["a ", "–y", ""]);
        assert_eq!(run(&[], &["a", "b"]).0, ["a", "b", ""]);
        assert!(StopStrings::new(&[String::new()]).is_err());
    }
}

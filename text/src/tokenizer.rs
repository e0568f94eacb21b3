//! Text to token ids and back.

use std::collections::HashSet;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use tokenizers::{Encoding, ModelWrapper, PostProcessor, Token};

// The library takes some damaged files and tokens for its own mistakes.
use crate::panics::catch;
use crate::{Detokenizer, Error, Result, Vocabulary};

/// A model's tokenizer. Cloning gives another handle to the same one.
#[derive(Clone)]
pub struct Tokenizer {
    tokenizer: Arc<tokenizers::Tokenizer>,
    /// What [`decode`](Self::decode) leaves out.
    special: Arc<HashSet<u32>>,
    /// Those and others that text is split before.
    added: Arc<HashSet<u32>>,
    /// What a GGUF file says that every text begins with.
    beginning: Option<u32>,
    path: Arc<Path>,
}

/// The first `most` tokens. The library's own way keeps what it cuts off, and what is put around it with each piece.
fn cut(encoding: Encoding, most: usize) -> Encoding {
    if encoding.len() <= most {
        return encoding;
    }
    let all = encoding.get_ids().iter().zip(encoding.get_tokens()).zip(encoding.get_offsets());
    let tokens =
        all.take(most).map(|((&id, value), &offsets)| Token::new(id, value.clone(), offsets));
    Encoding::from_tokens(tokens.collect(), 0)
}

impl fmt::Debug for Tokenizer {
    // The vocabulary would fill screens.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Tokenizer {
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
        let load = || {
            let mut tokenizer = tokenizers::Tokenizer::from_file(&path)?;
            // These are left from training: a prompt stays as long as it is.
            tokenizer.with_padding(None).with_truncation(None)?;
            Ok::<_, tokenizers::Error>(tokenizer)
        };
        Self::load(&path, || load().map_err(|e| e.to_string())).map(Some)
    }

    /// The tokenizer that `vocabulary` means, which is from the file `source`.
    ///
    /// # Errors
    ///
    /// The algorithm is unknown, or a value is missing or contradicts another one.
    pub fn from_vocabulary(vocabulary: &Vocabulary, source: &Path) -> Result<Self> {
        let mut tokenizer = Self::load(source, || vocabulary.build())?;
        let first = tokenizer.encode("", true)?.first().copied();
        tokenizer.beginning = vocabulary.beginning().filter(|bos| first == Some(*bos));
        Ok(tokenizer)
    }

    /// Its algorithm, and how many tokens it has: "BPE, 49152 tokens".
    pub fn kind(&self) -> String {
        let algorithm = match self.tokenizer.get_model() {
            ModelWrapper::BPE(_) => "BPE",
            ModelWrapper::Unigram(_) => "Unigram",
            ModelWrapper::WordPiece(_) => "WordPiece",
            ModelWrapper::WordLevel(_) => "WordLevel",
        };
        format!("{algorithm}, {} tokens", self.tokenizer.get_vocab_size(true))
    }

    /// The text of a `tokenizer.json` that means the same.
    ///
    /// # Errors
    ///
    /// The tokenizer fails.
    pub fn to_json(&self) -> Result<String> {
        catch(|| self.tokenizer.to_string(false))
            .and_then(|json| json.map_err(|e| e.to_string()))
            .map_err(|e| self.error(format!("cannot write the tokenizer: {e}")))
    }

    fn load(
        path: &Path,
        load: impl FnOnce() -> Result<tokenizers::Tokenizer, String>,
    ) -> Result<Self> {
        match catch(load).and_then(|loaded| loaded) {
            Ok(tokenizer) => {
                let added = tokenizer.get_added_tokens_decoder();
                let special = added.iter().filter(|(_, token)| token.special);
                let special = Arc::new(special.map(|(&id, _)| id).collect());
                let added = Arc::new(added.into_keys().collect());
                Ok(Self {
                    tokenizer: Arc::new(tokenizer),
                    special,
                    added,
                    beginning: None,
                    path: path.into(),
                })
            }
            Err(e) => {
                let message = format!("not a usable tokenizer: {e}");
                Err(Error::Tokenizer { path: path.to_owned(), message })
            }
        }
    }

    /// The tokenizer of the model in `folder`.
    ///
    /// # Errors
    ///
    /// As [`from_dir`](Self::from_dir), or the folder has no tokenizer.
    pub fn require(folder: &Path) -> Result<Self> {
        Self::from_dir(folder)?
            .ok_or_else(|| Error::NoTokenizer { path: folder.join("tokenizer.json") })
    }

    /// The ids of `text`; `special` adds what the tokenizer's post-processor adds (BOS, mostly).
    ///
    /// # Errors
    ///
    /// The tokenizer fails.
    pub fn encode(&self, text: &str, special: bool) -> Result<Vec<u32>> {
        let encoding = self.encoded(catch(|| self.tokenizer.encode_fast(text, special)))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// As [`encode`](Self::encode) with what the post-processor adds, but at most `most` ids: the end of a text that has more is
    /// cut off, and what is added stays, as far as there is room for it.
    ///
    /// # Errors
    ///
    /// The tokenizer fails.
    pub fn encode_within(&self, text: &str, most: usize) -> Result<Vec<u32>> {
        let encoding = catch(|| {
            let encoding = self.tokenizer.encode_fast(text, false)?;
            let room = most.saturating_sub(self.added_to(false));
            self.tokenizer.post_process(cut(encoding, room), None, true)
        });
        let encoding = self.encoded(encoding)?;
        Ok(encoding.get_ids().iter().copied().take(most).collect())
    }

    /// The ids of two texts with what the post-processor adds, as models take them that read both at once, and where the second
    /// one begins, if they are told apart by more than that. With `most` there are so many at most, if the first
    /// text has fewer: the end of the second one is cut off.
    ///
    /// # Errors
    ///
    /// The tokenizer fails.
    pub fn encode_pair(
        &self,
        first: &str,
        second: &str,
        most: Option<usize>,
    ) -> Result<(Vec<u32>, Option<usize>)> {
        let encoding = catch(|| {
            let [first, second] = [first, second].map(|it| self.tokenizer.encode_fast(it, false));
            let (first, second) = (first?, second?);
            let room = most.map(|most| most.saturating_sub(first.len() + self.added_to(true)));
            let second = cut(second, room.unwrap_or(usize::MAX));
            self.tokenizer.post_process(first, Some(second), true)
        });
        let encoding = self.encoded(encoding)?;
        let second = encoding.get_type_ids().iter().position(|&text| text > 0);
        Ok((encoding.get_ids().to_vec(), second))
    }

    /// Tokens that the post-processor adds to a text, or to two.
    fn added_to(&self, pair: bool) -> usize {
        self.tokenizer.get_post_processor().map_or(0, |it| it.added_tokens(pair))
    }

    fn encoded(
        &self,
        encoding: Result<Result<Encoding, tokenizers::Error>, String>,
    ) -> Result<Encoding> {
        encoding
            .and_then(|encoded| encoded.map_err(|e| e.to_string()))
            .map_err(|e| self.error(format!("cannot encode the text: {e}")))
    }

    /// The ids of a chat that a template has `rendered`, which says what stands in front of it: but templates in GGUF
    /// files often leave BOS out, for programs put it there where the file says so (`add_bos_token`), and so does this,
    /// once.
    ///
    /// # Errors
    ///
    /// The tokenizer fails.
    pub fn encode_chat(&self, rendered: &str) -> Result<Vec<u32>> {
        let mut ids = self.encode(rendered, false)?;
        if let Some(bos) = self.beginning
            && ids.first() != Some(&bos)
        {
            ids.insert(0, bos);
        }
        Ok(ids)
    }

    /// The text of `ids`, special tokens left out.
    ///
    /// # Errors
    ///
    /// The tokenizer fails.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        self.decode_with(ids, true)
    }

    /// The text of `ids`, special tokens as they are written.
    ///
    /// # Errors
    ///
    /// The tokenizer fails.
    pub fn decode_all(&self, ids: &[u32]) -> Result<String> {
        self.decode_with(ids, false)
    }

    fn decode_with(&self, ids: &[u32], skip_special: bool) -> Result<String> {
        catch(|| self.tokenizer.decode(ids, skip_special))
            .and_then(|decoded| decoded.map_err(|e| e.to_string()))
            .map_err(|e| self.error(format!("cannot decode tokens: {e}")))
    }

    /// Whether `id` is an added token (BOS, a role's marker): text is split before it, whatever
    /// stands there.
    pub fn is_added(&self, id: u32) -> bool {
        self.added.contains(&id)
    }

    /// The [added](Self::is_added) token that is written `text`.
    pub(crate) fn added(&self, text: &str) -> Option<u32> {
        self.tokenizer.token_to_id(text).filter(|&id| self.is_added(id))
    }

    /// The special token that is written `text`, which [`decode`](Self::decode) leaves out.
    pub fn special_token(&self, text: &str) -> Option<u32> {
        self.tokenizer.token_to_id(text).filter(|&id| self.is_special(id))
    }

    /// The special tokens that a text has which [`tokens_in`] it are.
    pub fn special_tokens_in(&self, text: &str) -> impl Iterator<Item = u32> {
        tokens_in(text).filter_map(|token| self.special_token(token))
    }

    /// How `id` is written, if [`decode`](Self::decode) leaves it out.
    pub fn special_text(&self, id: u32) -> Option<String> {
        self.written(id).filter(|_| self.is_special(id))
    }

    /// Whether [`decode`](Self::decode) leaves `id` out.
    pub(crate) fn is_special(&self, id: u32) -> bool {
        self.special.contains(&id)
    }

    /// Whether `id` stands for a byte that has no token of its own: `<0x0A>`.
    pub(crate) fn is_byte(&self, id: u32) -> bool {
        self.written(id).is_some_and(|it| {
            let digits = it.strip_prefix("<0x").and_then(|it| it.strip_suffix('>'));
            digits.is_some_and(|it| it.len() == 2 && u8::from_str_radix(it, 16).is_ok())
        })
    }

    /// How the token `id` is written.
    pub(crate) fn written(&self, id: u32) -> Option<String> {
        self.tokenizer.id_to_token(id)
    }

    /// Decodes what follows `prompt` token by token.
    pub fn detokenizer(&self, prompt: &[u32]) -> Detokenizer {
        Detokenizer::new(self.clone(), prompt)
    }

    fn error(&self, message: String) -> Error {
        Error::Tokenizer { path: self.path.to_path_buf(), message }
    }
}

/// Most bytes that a special token is looked for in.
const LONGEST_TOKEN: usize = 256;

/// What of `text` may be special tokens, which stand in brackets of some kind.
pub fn tokens_in(text: &str) -> impl Iterator<Item = &str> {
    text.char_indices().filter_map(|(at, first)| {
        let last = match first {
            '<' => b'>',
            '[' => b']',
            _ => return None,
        };
        let rest = &text[at..];
        let near = &rest.as_bytes()[..rest.len().min(LONGEST_TOKEN)];
        let end = near.contains(&last).then(|| rest.find(char::from(last)))??;
        Some(&rest[..=end])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tokenizer of words, which puts something around them as `processor` says.
    fn words(processor: &str) -> Tokenizer {
        let vocabulary: Vec<_> = (0..99).map(|id| format!("\"w{id}\": {id}")).collect();
        let json = format!(
            r#"{{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
                "pre_tokenizer": {{"type": "WhitespaceSplit"}}, "post_processor": {processor}, "decoder": null,
                "model": {{"type": "WordLevel", "vocab": {{{}}}, "unk_token": "w0"}}}}"#,
            vocabulary.join(", ")
        );
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("tokenizer.json"), json).unwrap();
        Tokenizer::require(folder.path()).unwrap()
    }

    /// As the library itself has both, whatever puts something around them; and what is cut off leaves that.
    #[test]
    fn two_texts_are_as_the_library_has_them() {
        let bert = r#"{"type": "BertProcessing", "sep": ["w2", 2], "cls": ["w1", 1]}"#;
        let roberta = r#"{"type": "RobertaProcessing", "sep": ["w2", 2], "cls": ["w1", 1],
                          "trim_offsets": true, "add_prefix_space": false}"#;
        for (processor, added, second) in
            [(bert, 3, Some(4)), (roberta, 4, None), ("null", 0, None)]
        {
            let tokenizer = words(processor);
            let pair = |most| tokenizer.encode_pair("w10 w11", "w20 w21 w22 w23", most).unwrap();
            let whole = tokenizer.tokenizer.encode(("w10 w11", "w20 w21 w22 w23"), true).unwrap();
            assert_eq!(pair(None), (whole.get_ids().to_vec(), second), "{processor}");
            assert_eq!(pair(Some(100)), pair(None));
            let (ids, begins) = pair(Some(added + 4));
            let fits = tokenizer.tokenizer.encode(("w10 w11", "w20 w21"), true).unwrap();
            assert_eq!((&ids[..], begins), (fits.get_ids(), second), "{processor}");

            let one = |most| tokenizer.encode_within("w10 w11 w12", most).unwrap();
            assert_eq!(one(99), tokenizer.encode("w10 w11 w12", true).unwrap());
            let around = tokenizer.encode("", true).unwrap().len();
            assert_eq!(one(around + 1), tokenizer.encode("w10", true).unwrap(), "{processor}");
            assert_eq!(one(1).len(), 1);
        }
        // What is cut off is not kept.
        let long = "w20 ".repeat(300_000);
        let (ids, _) = words(bert).encode_pair("w10", &long, Some(5)).unwrap();
        assert_eq!(ids, [1, 10, 2, 20, 2]);
    }
}

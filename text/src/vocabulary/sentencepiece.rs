//! Pieces of characters with spaces as ▁, as SentencePiece has them: BPE by scores or by listed
//! merges, and unigrams.
//!
//! Where the crate `tokenizers` is not SentencePiece to the letter:
//!
//! - Merges with the same score: SentencePiece takes the leftmost in the text, and here the merge
//!   that comes first in the list is taken everywhere. Trained vocabularies give every piece a
//!   score of its own; then only two ways to make one piece, with a symbol in common ("aa" + "a",
//!   "a" + "aa"), are left.
//! - A character that is no piece by itself is bytes before pieces are merged, and is in no longer
//!   one.
//! - User-defined pieces are found in the text before a space is put in front of it, and what
//!   follows one begins with a space of its own, as after a control token.

use std::borrow::Cow;
use std::collections::HashSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tokenizers::ModelWrapper;
use tokenizers::models::bpe::{Merges, Vocab};
use tokenizers::models::unigram::Unigram;

use super::{Special, TokenType, Vocabulary, bpe, merges};

/// What stands for a space.
pub(super) const SPACE: char = '▁';

/// Longest piece that is taken apart, in bytes. Trained ones are shorter than 300; the ways to cut
/// a piece grow with the square.
const LONGEST: usize = 1024;

pub(super) fn normalizer(vocabulary: &Vocabulary, prefix: bool) -> Value {
    let mut steps: Vec<_> =
        Some(charsmap(vocabulary)).filter(|it| !it.is_null()).into_iter().collect();
    if vocabulary.remove_extra_whitespaces {
        steps.push(replace(json!({"Regex": "^ +| +$"}), ""));
        steps.push(replace(json!({"Regex": " {2,}"}), " "));
    }
    if prefix {
        steps.push(json!({"type": "Prepend", "prepend": SPACE}));
    }
    steps.push(replace(json!({"String": " "}), &SPACE.to_string()));
    json!({"type": "Sequence", "normalizers": steps})
}

/// SentencePiece's table of characters, if the file has it.
pub(super) fn charsmap(vocabulary: &Vocabulary) -> Value {
    if vocabulary.precompiled_charsmap.is_empty() {
        return Value::Null;
    }
    let charsmap = STANDARD.encode(&vocabulary.precompiled_charsmap);
    json!({"type": "Precompiled", "precompiled_charsmap": charsmap})
}

/// Cuts at white space of any kind, and puts a ▁ before each word.
pub(super) fn words() -> Value {
    json!({"type": "Sequence", "pretokenizers": [
        {"type": "WhitespaceSplit"},
        {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": true},
    ]})
}

fn replace(pattern: Value, content: &str) -> Value {
    json!({"type": "Replace", "pattern": pattern, "content": content})
}

pub(super) fn decoder(prefix: bool) -> Value {
    let mut steps = vec![
        replace(json!({"String": SPACE}), " "),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if prefix {
        steps.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    json!({"type": "Sequence", "decoders": steps})
}

/// BPE whose merges the file lists.
pub(super) fn listed(
    vocabulary: &Vocabulary,
    texts: &[Cow<'_, str>],
    vocab: Vocab,
) -> Result<ModelWrapper, String> {
    characters(vocabulary, texts, vocab, merges(&vocabulary.merges)?)
}

/// BPE that makes the piece with the highest score first: every way to make a piece of two others,
/// in the order of their scores.
pub(super) fn scored(
    vocabulary: &Vocabulary,
    texts: &[Cow<'_, str>],
    vocab: Vocab,
) -> Result<ModelWrapper, String> {
    check_scores(vocabulary)?;
    let normal = |id: usize| vocabulary.token_type(id) == TokenType::Normal;
    let pieces = || texts.iter().enumerate().filter(|&(id, _)| normal(id));
    let known: HashSet<&str> = pieces().map(|(_, text)| &**text).collect();
    let mut ways: Vec<(f32, &str, &str)> = Vec::new();
    for (id, text) in pieces() {
        if text.len() > LONGEST {
            let length = text.len();
            return Err(format!(
                "tokenizer.ggml.tokens: {id} has {length} bytes, more than the {LONGEST} that a \
                 piece may have"
            ));
        }
        let cuts = text.char_indices().skip(1).map(|(at, _)| text.split_at(at));
        let cuts = cuts.filter(|(left, right)| known.contains(left) && known.contains(right));
        ways.extend(cuts.map(|(left, right)| (vocabulary.scores[id], left, right)));
    }
    // The sort is stable: by id in the end. Longer left parts first is what transformers does too.
    ways.sort_by(|a, b| b.0.total_cmp(&a.0).then(b.1.len().cmp(&a.1.len())));
    let merges = ways.into_iter().map(|(_, left, right)| (left.to_owned(), right.to_owned()));
    characters(vocabulary, texts, vocab, merges.collect())
}

fn characters(
    vocabulary: &Vocabulary,
    texts: &[Cow<'_, str>],
    vocab: Vocab,
    merges: Merges,
) -> Result<ModelWrapper, String> {
    bpe(vocab, merges, |model| {
        let model = model.fuse_unk(true).byte_fallback(has_bytes(vocabulary));
        match vocabulary.id(Special::Unknown) {
            Some(id) => model.unk_token(texts[id as usize].to_string()),
            None => model,
        }
    })
}

pub(super) fn unigram(
    vocabulary: &Vocabulary,
    texts: &[Cow<'_, str>],
) -> Result<ModelWrapper, String> {
    check_scores(vocabulary)?;
    let pieces = texts.iter().zip(&vocabulary.scores);
    let pieces = pieces.map(|(text, &score)| (text.to_string(), f64::from(score))).collect();
    let unknown = vocabulary.id(Special::Unknown).map(|id| id as usize);
    let model = Unigram::from(pieces, unknown, has_bytes(vocabulary));
    model.map(Into::into).map_err(|error| error.to_string())
}

fn check_scores(vocabulary: &Vocabulary) -> Result<(), String> {
    match vocabulary.scores.is_empty() {
        true => Err("the key tokenizer.ggml.scores is missing".into()),
        false => Ok(()),
    }
}

fn has_bytes(vocabulary: &Vocabulary) -> bool {
    vocabulary.types.contains(&TokenType::Byte)
}

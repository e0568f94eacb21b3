//! What a grammar accepts, a byte a token.

use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};

/// The special token of the tokenizer of [`accepts`] that is written so: one of `marks`, behind the bytes.
pub fn special(marks: &[&str], text: &str) -> Option<u32> {
    marks.iter().position(|mark| *mark == text).map(|at| 256 + at as u32)
}

/// Whether an answer may be `text`, a byte a token but for `marks`, which are special tokens; how much of it may
/// be said if not.
pub fn accepts(grammar: &TopLevelGrammar, marks: &[&str], text: &str) -> Result<(), String> {
    let mut matcher = matcher(grammar, marks);
    let (mut tokens, mut begins, mut at) = (Vec::new(), Vec::new(), 0);
    while at < text.len() {
        let mark = marks.iter().find(|mark| text.as_bytes()[at..].starts_with(mark.as_bytes()));
        let token = mark.and_then(|mark| special(marks, mark));
        tokens.push(token.unwrap_or(text.as_bytes()[at].into()));
        begins.push(at);
        at += mark.map_or(1, |mark| mark.len());
    }
    let taken = matcher.try_consume_tokens(&tokens);
    let taken = taken.unwrap_or_else(|error| panic!("{error}: {grammar:?}"));
    if let Some(at) = begins.get(taken) {
        return Err(text[..*at].to_owned());
    }
    // What a server asks for before each token.
    matcher.compute_mask_or_eos().unwrap();
    if matcher.is_accepting().unwrap() { Ok(()) } else { Err(text.to_owned()) }
}

/// At the beginning of `grammar`.
fn matcher(grammar: &TopLevelGrammar, marks: &[&str]) -> Matcher {
    Matcher::new(factory(marks).create_parser(grammar.clone()))
}

/// With a token for each byte, and `marks` behind them.
fn factory(marks: &[&str]) -> ParserFactory {
    let bytes = (0..=255).map(|byte| vec![byte]);
    let specials = marks.iter().copied().chain(["<end>"]);
    let specials = specials.map(|mark| [b"\xff", mark.as_bytes()].concat());
    let words: Vec<Vec<u8>> = bytes.chain(specials).collect();
    let count = words.len() as u32;
    let trie = TokTrie::from(&TokRxInfo::new(count, count - 1), &words);
    let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
    let mut factory = ParserFactory::new_simple(&environment).unwrap();
    factory.quiet();
    factory
}

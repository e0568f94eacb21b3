//! Drafts and without: how fast an answer comes that is known beforehand.
//!
//! Whether drafts are right depends on the text, and what a step takes does not. So the answer is [given](Request::written):
//! each step runs, and what it says is replaced by the next token of the text. That is what a model would
//! measure whose answer it is, and it can be measured with any, a random one too.

use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};
use xla_session::batching::{BatcherOptions, Gap, Request, Speculate};
use xla_session::{Batcher, DraftCounts, Engine, EngineOptions, Model, Result};

use super::pass;
use super::spread::Spread;
use super::table::{number, table};

/// Tokens of the prompt.
pub const PROMPT: usize = 256;

/// The measurements of one process: one model in one precision.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Speculated {
    /// The model as it was asked for.
    pub model: String,
    /// Where it ran.
    pub device: String,
    /// How weights were kept.
    pub precision: String,
    /// Worker threads that were asked for; `None` is the engine's own choice.
    pub threads: Option<usize>,
    /// Of each text and length of the answer.
    pub speculation: Vec<Measured>,
}

/// Speeds of the single tokens of an answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// "repeating": the prompt again, with a token in 40 changed. "random": tokens at random, of 16
    /// different ones, so that what followed the last few before is found and is wrong.
    pub text: String,
    /// Tokens of the answer.
    pub tokens: usize,
    /// Tokens that were drafted, in the last repetition.
    pub drafted: usize,
    /// Of these, those that were right.
    pub accepted: usize,
    /// With drafts.
    pub tokens_per_second: Spread,
    /// One at a time.
    pub without: Spread,
}

/// Measures both texts with an answer of `tokens` tokens, with drafts and without in turn.
///
/// # Errors
///
/// Those of the engine.
pub fn measure(
    model: &Model,
    tokens: usize,
    repetitions: usize,
    warm_up: bool,
) -> Result<Vec<Measured>> {
    let vocab_size = model.config().vocab_size;
    let texts =
        [("repeating", repeating(vocab_size, tokens)), ("random", random(vocab_size, tokens))];
    let mut measured = Vec::new();
    for (name, text) in texts {
        let answer = |tokens, speculate| answer(model, &text, tokens, speculate);
        if warm_up {
            answer(tokens.min(16), Speculate::Auto)?;
            answer(2, Speculate::Off)?;
        }
        let (mut with, mut without, mut drafts) = (Vec::new(), Vec::new(), DraftCounts::default());
        for repetition in 0..repetitions {
            // Each goes first as often as the other.
            for drafting in [repetition % 2 == 0, repetition % 2 != 0] {
                let speculate = if drafting { Speculate::Auto } else { Speculate::Off };
                let (speed, counts) = answer(tokens, speculate)?;
                if drafting {
                    with.push(speed);
                    drafts = counts;
                } else {
                    without.push(speed);
                }
            }
        }
        let spread = |it| Spread::of(it).unwrap_or(Spread { median: 0.0, min: 0.0, max: 0.0 });
        measured.push(Measured {
            text: name.to_owned(),
            tokens,
            drafted: drafts.drafted,
            accepted: drafts.accepted,
            tokens_per_second: spread(with),
            without: spread(without),
        });
    }
    Ok(measured)
}

/// Single tokens a second. What guesses cost is found out by each answer again.
fn answer(
    model: &Model,
    text: &[u32],
    tokens: usize,
    speculate: Speculate,
) -> Result<(f64, DraftCounts)> {
    let engine = Engine::new(model, &EngineOptions::default())?;
    let mut options = BatcherOptions::of(&engine);
    (options.gap, options.speculate) = (Gap::Nothing, speculate);
    let mut batcher = Batcher::new(engine, &options)?;
    let (prompt, written) = text.split_at(PROMPT);
    batcher.submit(Request {
        prompt: prompt.to_vec(),
        max_tokens: tokens,
        written: Some(written.into()),
        ..Request::default()
    })?;
    let mut rate = 0.0;
    while !batcher.is_idle() {
        for (_, ended) in batcher.advance(&mut |_, _| ControlFlow::Continue(()))? {
            let timings = ended.timings;
            let rest = timings.total - timings.first_token.unwrap_or_default();
            rate = (timings.tokens - 1) as f64 / rest.as_secs_f64();
        }
    }
    Ok((rate, batcher.statistics().drafts))
}

/// A prompt, and itself again with some tokens changed; one more than the answer has.
fn repeating(vocab_size: usize, tokens: usize) -> Vec<u32> {
    let mut ids = pass::tokens(vocab_size);
    let prompt: Vec<_> = ids.by_ref().take(PROMPT).collect();
    let changed =
        |i: usize| if i % 40 == 39 { ids.next() } else { prompt.get(i % PROMPT).copied() };
    let answer: Vec<_> = (0..=tokens).filter_map(changed).collect();
    [prompt, answer].concat()
}

/// Of 16 different tokens; one more than the answer has.
fn random(vocab_size: usize, tokens: usize) -> Vec<u32> {
    pass::tokens(vocab_size.min(16)).take(PROMPT + tokens + 1).collect()
}

/// A table of all.
pub fn tables(runs: &[Speculated]) -> String {
    let header =
        ["precision", "text", "tokens", "drafted", "right", "tok/s", "without drafts", "ratio"];
    let mut speeds = table(&header);
    for run in runs {
        for it in &run.speculation {
            speeds.add_row([
                run.precision.clone(),
                it.text.clone(),
                it.tokens.to_string(),
                it.drafted.to_string(),
                it.accepted.to_string(),
                number(it.tokens_per_second.median),
                number(it.without.median),
                number(it.tokens_per_second.median / it.without.median),
            ]);
        }
    }
    format!("{speeds}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_repeats_the_prompt_or_nothing() {
        let text = repeating(128_256, 300);
        assert_eq!(text.len(), PROMPT + 301);
        let same = |i: &usize| text[PROMPT + i] == text[i % PROMPT];
        assert_eq!((0..301).filter(same).count(), 301 - 7, "a token in 40 is another one");
        let text = random(128_256, 100);
        assert_eq!(text.len(), PROMPT + 101);
        let different: std::collections::BTreeSet<_> = text.iter().collect();
        assert_eq!(different.len(), 16);
    }
}

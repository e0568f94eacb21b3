//! Drafts and without: how fast an answer comes that is known beforehand.
//!
//! Whether drafts are right depends on the text, and what a step takes does not. So the answer is given:
//! each step runs, and what it says is replaced by the next token of the text. That is what a model would
//! measure whose answer it is, and it can be measured with any, a random one too.

use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};
use xla_session::{
    Capabilities, DraftCounts, GenerateOptions, InferenceSession, NgramDrafter, Result,
    Speculation, Step, generate,
};

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

/// A session whose steps say what was written beforehand.
struct Scripted<'a> {
    session: &'a mut dyn InferenceSession,
    /// Prompt and answer.
    text: &'a [u32],
}

impl Scripted<'_> {
    fn step(&self) -> Step {
        Step::new(self.text[self.session.position()])
    }
}

impl InferenceSession for Scripted<'_> {
    fn capabilities(&self) -> &Capabilities {
        self.session.capabilities()
    }

    fn prefill(&mut self, tokens: &[u32]) -> Result<Step> {
        self.session.prefill(tokens)?;
        Ok(self.step())
    }

    fn decode_step(&mut self, token: u32) -> Result<Step> {
        self.session.decode_step(token)?;
        Ok(self.step())
    }

    fn tokens(&mut self, tokens: &[u32]) -> Result<Vec<u32>> {
        let first = self.session.position() + 1;
        self.session.tokens(tokens)?;
        Ok(self.text[first..][..tokens.len()].to_vec())
    }

    fn read_logits(&mut self, logits: &mut Vec<f32>) -> Result<()> {
        self.session.read_logits(logits)
    }

    fn position(&self) -> usize {
        self.session.position()
    }

    fn truncate(&mut self, tokens: usize) -> usize {
        self.session.truncate(tokens)
    }

    fn reset(&mut self) {
        self.session.reset();
    }
}

/// Measures both texts with an answer of `tokens` tokens, with drafts and without in turn.
///
/// # Errors
///
/// Those of the session.
pub fn measure(
    session: &mut dyn InferenceSession,
    tokens: usize,
    repetitions: usize,
    warm_up: bool,
) -> Result<Vec<Measured>> {
    let vocab_size = session.capabilities().vocab_size;
    let texts =
        [("repeating", repeating(vocab_size, tokens)), ("random", random(vocab_size, tokens))];
    let mut measured = Vec::new();
    for (name, text) in texts {
        let mut scripted = Scripted { session, text: &text };
        if warm_up {
            answer(&mut scripted, tokens.min(16), true)?;
            answer(&mut scripted, 2, false)?;
        }
        let (mut with, mut without, mut drafts) = (Vec::new(), Vec::new(), DraftCounts::default());
        for repetition in 0..repetitions {
            // Each goes first as often as the other.
            for drafting in [repetition % 2 == 0, repetition % 2 != 0] {
                let (speed, counts) = answer(&mut scripted, tokens, drafting)?;
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

/// Single tokens a second.
fn answer(session: &mut Scripted<'_>, tokens: usize, drafting: bool) -> Result<(f64, DraftCounts)> {
    session.reset();
    let prompt = &session.text[..PROMPT];
    let speculation = drafting.then(|| Speculation::auto(NgramDrafter::default()));
    let mut options =
        GenerateOptions { max_tokens: tokens, speculation, ..GenerateOptions::default() };
    let generation = generate(session, prompt, &mut options, |_| ControlFlow::Continue(()))?;
    let timings = generation.timings;
    Ok((timings.decode_tokens as f64 / timings.decode.as_secs_f64(), generation.drafts))
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

//! Where the time went: one line for people, one object for programs.

use std::time::Duration;

use serde::Serialize;
use xla_session::DraftCounts;

use crate::answer::Times;

/// What `generate --json` prints.
#[derive(Debug, Serialize)]
pub struct Report<'a> {
    /// Ids of the prompt, with everything that the tokenizer added.
    pub prompt_tokens: &'a [u32],
    /// Generated ids, without EOS.
    pub tokens: &'a [u32],
    /// Generated text up to the stop string, if one ended it; null without a tokenizer.
    pub text: Option<&'a str>,
    /// "eos", "stop", "length", "context", or "interrupted" by Ctrl-C.
    pub finish_reason: &'static str,
    /// What became of drafts.
    pub drafts: Drafts,
    /// Seconds and tokens.
    pub timings: Seconds,
    /// The most bytes of the host's memory that the process held, mapped files included; null
    /// where the system does not say.
    pub peak_bytes: Option<u64>,
    /// The model as it was asked for.
    pub model: &'a str,
    /// Where it ran.
    pub device: &'a str,
    /// How weights were kept.
    pub precision: &'static str,
}

/// Tokens that were drafted and verified, and those of them that were right.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Drafts {
    drafted: usize,
    accepted: usize,
}

impl Drafts {
    /// Of an answer.
    pub fn new(DraftCounts { drafted, accepted }: DraftCounts) -> Self {
        Self { drafted, accepted }
    }

    /// Of what was drafted since there were so many.
    pub fn since(before: DraftCounts, now: DraftCounts) -> Self {
        Self { drafted: now.drafted - before.drafted, accepted: now.accepted - before.accepted }
    }

    /// ", 30 of 41 drafts right", where there were some.
    pub fn line(&self) -> String {
        let Self { drafted, accepted } = self;
        if *drafted == 0 {
            return String::new();
        }
        format!(", {accepted} of {drafted} drafts right")
    }
}

/// Times in seconds and the numbers of tokens they belong to.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Seconds {
    /// Reading, packing and uploading weights.
    pub load_s: f64,
    /// Compiling graphs; zero when all were cached.
    pub compile_s: f64,
    /// From the prompt's tokens in hand to the first token in hand.
    pub ttft_s: f64,
    /// Tokens of the prompt that were run: in a chat those that are new.
    pub prefill_n: usize,
    /// Their time, the choice of the first token included.
    pub prefill_s: f64,
    /// Tokens after the first, and the model's end if it came.
    pub decode_n: usize,
    /// Their time.
    pub decode_s: f64,
}

impl Seconds {
    /// The times of an answer and of opening the model.
    pub fn new(load: Duration, compile: Duration, times: &Times) -> Self {
        let Times { prompt_tokens, first_token, tokens, rest } = *times;
        Self {
            load_s: load.as_secs_f64(),
            compile_s: compile.as_secs_f64(),
            ttft_s: first_token.as_secs_f64(),
            prefill_n: prompt_tokens,
            prefill_s: first_token.as_secs_f64(),
            decode_n: tokens,
            decode_s: rest.as_secs_f64(),
        }
    }

    /// One line: "load 0.12 s, compile 0.00 s, first token 0.034 s, prefill 12 tokens …".
    pub fn line(&self) -> String {
        format!("load {:.2} s, compile {:.2} s, {}", self.load_s, self.compile_s, self.turn())
    }

    /// The part of [`line`](Self::line) that differs from turn to turn.
    pub fn turn(&self) -> String {
        format!(
            "first token {:.3} s, prefill {}, decode {}",
            self.ttft_s,
            rate(self.prefill_n, self.prefill_s),
            rate(self.decode_n, self.decode_s),
        )
    }
}

/// ", peak memory 1.23 GB", where it is known.
pub fn peak_memory(bytes: Option<u64>) -> String {
    bytes.map_or_else(String::new, |bytes| format!(", peak memory {:.2} GB", bytes as f64 / 1e9))
}

fn rate(tokens: usize, seconds: f64) -> String {
    let noun = if tokens == 1 { "token" } else { "tokens" };
    if tokens == 0 || seconds <= 0.0 {
        return format!("{tokens} {noun}");
    }
    format!("{tokens} {noun} at {:.1} tok/s", tokens as f64 / seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drafts_are_named_where_there_were_some() {
        let line = |drafted, accepted| Drafts { drafted, accepted }.line();
        assert_eq!(line(41, 30), ", 30 of 41 drafts right");
        assert_eq!(line(0, 0), "");
    }

    #[test]
    fn memory_that_is_not_known_is_not_named() {
        assert_eq!(peak_memory(Some(1_234_000_000)), ", peak memory 1.23 GB");
        assert_eq!(peak_memory(None), "");
    }

    #[test]
    fn the_line_names_every_time_and_divides_by_none_that_is_zero() {
        let seconds = Seconds { prefill_n: 12, prefill_s: 0.5, ..Seconds::default() };
        assert_eq!(
            seconds.line(),
            "load 0.00 s, compile 0.00 s, first token 0.000 s, \
             prefill 12 tokens at 24.0 tok/s, decode 0 tokens"
        );
    }
}

//! One answer: tokens from a session, shown as text while they come.

use std::io;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use text::{StopStrings, TextStream, Tokenizer};
use xla_session::{FinishReason, GenerateOptions, Generation, InferenceSession};

use crate::interrupt;
use crate::readable::{Readable, Writing};

/// How tokens are read.
#[derive(Debug, Clone, Copy)]
pub struct Reading<'a> {
    /// Without one there is no text.
    pub tokenizer: Option<&'a Tokenizer>,
    /// How the model writes, where that is more than text.
    pub writing: Writing,
    /// Strings that end the answer.
    pub stops: &'a [String],
}

/// What came out.
#[derive(Debug)]
pub struct Answer {
    /// The tokens, why they ended, and the time they took.
    pub generation: Generation,
    /// The text that was shown; `None` without a tokenizer.
    pub text: Option<String>,
    /// The same as the model wrote it.
    pub written: String,
    /// From the beginning to the first token in hand.
    pub first_token: Duration,
    /// Whether Ctrl-C ended it.
    pub interrupted: bool,
}

/// Generates from the tokens `new`, which follow what `session` already holds.
///
/// `before` is what the session holds and `new`, or its end: it decides how the first new tokens
/// read. Each piece of text goes to `show` as soon as it is certain, as it is shown.
///
/// # Errors
///
/// The session's, the tokenizer's, or that of `show`, in which case the session is still whole.
pub fn generate(
    session: &mut dyn InferenceSession,
    before: &[u32],
    new: &[u32],
    options: &mut GenerateOptions,
    reading: Reading<'_>,
    mut show: impl FnMut(&str) -> io::Result<()>,
) -> Result<Answer> {
    let Reading { tokenizer, writing, stops } = reading;
    let stops = StopStrings::new(stops).context("--stop")?;
    let mut stream = tokenizer
        .map(|it| TextStream::new(it.detokenizer(before).showing(writing.special_ids(it)), stops));
    let mut readable = Readable::new(writing.style);
    let (mut written, mut shown) = (String::new(), String::new());
    let mut show = |piece: &str| -> Result<()> {
        if !piece.is_empty() {
            shown.push_str(piece);
            show(piece)?;
        }
        Ok(())
    };

    let generating = interrupt::generating();
    options.interrupted = Some(Box::new(interrupt::stopped));
    options.preceding = before[..before.len().saturating_sub(new.len())].to_vec();
    let start = Instant::now();
    let mut first_token = None;
    let mut stopped = false;
    let mut failure = None;
    let generation = xla_session::generate(session, new, options, |token| {
        first_token.get_or_insert_with(|| start.elapsed());
        let mut step = || -> Result<bool> {
            let Some(stream) = &mut stream else { return Ok(false) };
            let (piece, stopped) = stream.push(token)?;
            written += &piece;
            show(&readable.push(&piece))?;
            Ok(stopped)
        };
        match step() {
            Ok(it) => stopped = it,
            Err(error) => failure = Some(error),
        }
        if stopped || failure.is_some() || interrupt::stopped() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    })?;
    if let Some(error) = failure {
        return Err(error);
    }
    let interrupted = interrupt::stopped();
    drop(generating);

    if let Some(stream) = stream {
        let rest = stream.finish()?;
        written += &rest;
        show(&readable.push(&rest))?;
        show(&readable.finish())?;
    }
    let first_token = first_token.unwrap_or(generation.timings.prefill);
    let text = tokenizer.map(|_| shown);
    Ok(Answer { generation, text, written, first_token, interrupted })
}

impl Answer {
    /// Why it ended, as JSON says it.
    pub fn finish_reason(&self) -> &'static str {
        match self.generation.finish_reason {
            FinishReason::Stop if self.interrupted => "interrupted",
            reason => reason.as_str(),
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::fixture;
    use xla_session::{Capabilities, Error, Step};

    /// Says a fixed text after every prompt, then EOS for ever; keeps what it was given.
    pub struct Parrot {
        capabilities: Capabilities,
        script: Vec<u32>,
        next: usize,
        pub held: Vec<u32>,
        pub prefills: Vec<Vec<u32>>,
        pub resets: usize,
        pub truncates: bool,
    }

    impl Parrot {
        pub fn new(script: &[u32], context: usize) -> Self {
            // Some tests add marks to the tokenizer.
            let marks = text::AnswerStyle::Harmony.special_tokens().len();
            let vocab = fixture::vocab_size() + marks;
            Self {
                capabilities: Capabilities::new("parrot", "perch", vocab, context, context),
                script: script.to_vec(),
                next: 0,
                held: Vec::new(),
                prefills: Vec::new(),
                resets: 0,
                truncates: true,
            }
        }

        fn step(&mut self) -> Step {
            let token = self.script.get(self.next).copied().unwrap_or(fixture::EOS);
            self.next += 1;
            Step::new(token)
        }
    }

    impl InferenceSession for Parrot {
        fn capabilities(&self) -> &Capabilities {
            &self.capabilities
        }

        fn prefill(&mut self, tokens: &[u32]) -> xla_session::Result<Step> {
            if tokens.is_empty() {
                return Err(Error::EmptyPrompt);
            }
            let needed = self.held.len() + tokens.len();
            let context = self.capabilities.context;
            if needed > context {
                return Err(Error::ContextFull { needed, context, max: context });
            }
            self.held.extend(tokens);
            self.prefills.push(tokens.to_vec());
            self.next = 0;
            Ok(self.step())
        }

        fn decode_step(&mut self, token: u32) -> xla_session::Result<Step> {
            self.held.push(token);
            Ok(self.step())
        }

        /// A parrot takes every word for as likely.
        fn read_logits(&mut self, logits: &mut Vec<f32>) -> xla_session::Result<()> {
            logits.clear();
            logits.resize(self.capabilities.vocab_size, 0.0);
            Ok(())
        }

        fn position(&self) -> usize {
            self.held.len()
        }

        fn truncate(&mut self, tokens: usize) -> usize {
            if tokens < self.held.len() {
                if self.truncates {
                    self.held.truncate(tokens);
                } else {
                    self.reset();
                }
            }
            self.held.len()
        }

        fn reset(&mut self) {
            self.held.clear();
            self.resets += 1;
        }
    }

    fn says(
        script: &str,
        stops: &[&str],
        max_tokens: usize,
        mut show: impl FnMut(&str) -> io::Result<()>,
    ) -> Result<Answer> {
        let folder = tempfile::tempdir().unwrap();
        fixture::write_tokenizer(folder.path());
        let tokenizer = Tokenizer::require(folder.path()).unwrap();
        let mut parrot = Parrot::new(&tokenizer.encode(script, false).unwrap(), 64);
        let mut options =
            GenerateOptions { max_tokens, eos: vec![fixture::EOS], ..Default::default() };
        let prompt = tokenizer.encode("p", true).unwrap();
        let stops: Vec<_> = stops.iter().map(|&s| s.to_owned()).collect();
        let reading =
            Reading { tokenizer: Some(&tokenizer), writing: Writing::default(), stops: &stops };
        generate(&mut parrot, &prompt, &prompt, &mut options, reading, &mut show)
    }

    #[test]
    fn text_streams_and_ends_at_eos() {
        let mut pieces = Vec::new();
        let answer = says("the 🦊 fox", &[], 40, |piece| {
            pieces.push(piece.to_owned());
            Ok(())
        });
        let answer = answer.unwrap();
        assert_eq!(answer.text.as_deref(), Some("the 🦊 fox"));
        assert_eq!(pieces.concat(), "the 🦊 fox");
        assert!(pieces.len() > 4, "{pieces:?}");
        assert_eq!(answer.generation.finish_reason, FinishReason::Eos);
        assert!(!answer.generation.tokens.contains(&fixture::EOS));
    }

    #[test]
    fn a_stop_string_cuts_the_text() {
        let answer = says("one, two, three", &["o, th"], 40, |_| Ok(())).unwrap();
        assert_eq!(answer.text.as_deref(), Some("one, tw"));
        assert_eq!(answer.generation.finish_reason, FinishReason::Stop);
    }

    #[test]
    fn what_a_stop_string_held_back_comes_out_at_the_end() {
        let answer = says("one, two", &["two!"], 40, |_| Ok(())).unwrap();
        assert_eq!(answer.text.as_deref(), Some("one, two"));
        let answer = says("abcdef", &[], 3, |_| Ok(())).unwrap();
        assert_eq!(answer.text.as_deref(), Some("abc"));
        assert_eq!(answer.generation.finish_reason, FinishReason::Length);
    }

    #[test]
    fn an_answer_that_was_cut_did_not_stop_by_itself() {
        let mut answer = says("abcdef", &["d"], 40, |_| Ok(())).unwrap();
        assert_eq!(answer.finish_reason(), "stop");
        answer.interrupted = true;
        assert_eq!(answer.finish_reason(), "interrupted");
        answer.generation.finish_reason = FinishReason::Length;
        assert_eq!(answer.finish_reason(), "length");
    }

    #[test]
    fn a_closed_pipe_ends_it_with_its_own_error() {
        let error = says("abc", &[], 40, |_| Err(io::ErrorKind::BrokenPipe.into())).unwrap_err();
        let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
        assert_eq!(kind, Some(io::ErrorKind::BrokenPipe));
    }
}

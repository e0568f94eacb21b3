//! One answer: what a model is asked, and what comes of it, shown while it comes.

use std::io;
use std::time::{Duration, Instant};

use anyhow::Result;
use iree_llm::{Ask, Llm, Response};
use serde_json::{Map, Value};
use text::{Part, Place};
use xla_session::FinishReason;
use xla_session::batching::{self, Piece, Timings};

use crate::interrupt;
use crate::readable::Readable;

/// What a model is asked.
#[derive(Debug, Clone, PartialEq)]
pub enum Asked {
    /// To go on with tokens.
    Tokens(Vec<u32>),
    /// To go on with a text.
    Text(String),
    /// What stands between two.
    Between { prefix: String, suffix: String },
    /// What a message is answered with, by its chat template.
    Chat(Vec<Map<String, Value>>),
}

/// A message of a chat.
pub fn message(role: &str, content: &str) -> Map<String, Value> {
    let pairs = [("role", role), ("content", content)];
    pairs.map(|(name, value)| (name.to_owned(), value.into())).into_iter().collect()
}

impl Asked {
    /// Asks `llm`.
    ///
    /// # Errors
    ///
    /// As those of `llm` for each.
    pub fn of(self, llm: &Llm, ask: &Ask) -> iree_llm::Result<Response> {
        match self {
            Self::Tokens(tokens) => llm.complete_tokens(tokens, ask),
            Self::Text(text) => llm.complete(&text, ask),
            Self::Between { prefix, suffix } => {
                let place = Place { prefix: &prefix, suffix: &suffix, ..Place::default() };
                llm.fill_in(&place, ask)
            }
            Self::Chat(messages) => llm.chat(&messages, ask),
        }
    }
}

/// What came out.
#[derive(Debug)]
pub struct Answer {
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// The text that was shown; `None` without a tokenizer.
    pub text: Option<String>,
    /// What was said, and what was thought before that.
    content: String,
    reasoning: String,
    /// Why it ended; `None` is Ctrl-C.
    reason: Option<FinishReason>,
    /// Where its time went.
    pub times: Times,
}

/// Where the time of an answer went.
#[derive(Debug, Clone, Copy, Default)]
pub struct Times {
    /// Tokens of the prompt that were run.
    pub prompt_tokens: usize,
    /// From when it was asked for to its first token, or to its end.
    pub first_token: Duration,
    /// Tokens behind the first.
    pub tokens: usize,
    /// Their time.
    pub rest: Duration,
}

impl Times {
    fn new(timings: &Timings, reason: FinishReason) -> Self {
        let first_token = timings.first_token.unwrap_or(timings.total);
        // The model's end is a step, too.
        let steps = timings.tokens + usize::from(reason == FinishReason::Eos);
        Self {
            prompt_tokens: timings.prompt_tokens - timings.cached_tokens,
            first_token,
            tokens: steps.saturating_sub(1),
            rest: timings.total - first_token,
        }
    }

    /// Of an answer to `prompt` tokens that Ctrl-C has ended now.
    fn of_interrupted(
        prompt: usize,
        start: Instant,
        first_token: Option<Duration>,
        tokens: usize,
    ) -> Self {
        let now = start.elapsed();
        let first_token = first_token.unwrap_or(now);
        let (tokens, rest) = (tokens.saturating_sub(1), now - first_token);
        Self { prompt_tokens: prompt, first_token, tokens, rest }
    }
}

/// Shows what comes of `response`, by `show`, until its end or Ctrl-C.
///
/// # Errors
///
/// The model's, the form's, or that of `show`.
pub fn follow(
    mut response: Response,
    mut show: impl FnMut(&str) -> io::Result<()>,
) -> Result<Answer> {
    let (mut readable, mut shown) = (Readable::default(), String::new());
    let (mut content, mut reasoning) = (String::new(), String::new());
    let mut each = |part: iree_llm::Result<Part>| -> Result<()> {
        let part = part?;
        match &part {
            Part::Content(text) => content += text,
            Part::Reasoning(text) => reasoning += text,
            // There are no tools here.
            Part::Call(_) | Part::Arguments(_) => {}
        }
        let piece = readable.push(part);
        shown += &piece;
        if piece.is_empty() { Ok(()) } else { Ok(show(&piece)?) }
    };
    let start = Instant::now();
    let interrupted = interrupt::follow(async || response.recv().await, &mut each)?;
    // A prompt may take long.
    if interrupted && !response.tokens().is_empty() {
        response.stop();
        while let Some(part) = response.blocking_recv() {
            each(part)?;
        }
    }
    let tokens: Vec<_> = response.tokens().iter().map(|it| it.id).collect();
    let times = match response.end() {
        Some(end) => Times::new(&end.timings, end.reason),
        None => Times::of_interrupted(response.prompt().len(), start, None, tokens.len()),
    };
    let reason = response.end().map(|end| end.reason).filter(|_| !interrupted);
    Ok(Answer { tokens, text: Some(shown), content, reasoning, reason, times })
}

/// The tokens that come of `answer` to a prompt of `prompt` tokens, until its end or Ctrl-C.
///
/// # Errors
///
/// The model's.
pub fn count(prompt: usize, mut answer: batching::Answer) -> Result<Answer> {
    let (mut tokens, mut end) = (Vec::new(), None);
    let (start, mut first) = (Instant::now(), None);
    interrupt::follow(
        async || answer.recv().await,
        |piece| {
            first.get_or_insert_with(|| start.elapsed());
            match piece? {
                Piece::Token(token) => tokens.push(token.id),
                Piece::Ended(ended) => end = Some(ended),
            }
            Ok(())
        },
    )?;
    let times = match &end {
        Some(end) => Times::new(&end.timings, end.reason),
        None => Times::of_interrupted(prompt, start, first, tokens.len()),
    };
    let (content, reasoning) = (String::new(), String::new());
    let reason = end.map(|end| end.reason);
    Ok(Answer { tokens, text: None, content, reasoning, reason, times })
}

impl Answer {
    /// Why it ended, as JSON says it.
    pub fn finish_reason(&self) -> &'static str {
        self.reason.map_or("interrupted", FinishReason::as_str)
    }

    /// Whether Ctrl-C ended it.
    pub fn is_interrupted(&self) -> bool {
        self.reason.is_none()
    }

    /// Whether the context did.
    pub fn fills_context(&self) -> bool {
        self.reason == Some(FinishReason::Context)
    }

    /// The message that it is in a conversation that goes on.
    pub fn message(&self) -> Map<String, Value> {
        let mut message = message("assistant", &self.content);
        if !self.reasoning.is_empty() {
            message.insert("reasoning_content".to_owned(), self.reasoning.as_str().into());
        }
        message
    }
}

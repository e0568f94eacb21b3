//! Answers prompts together: lines in, requests to a model, lines out.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use indicatif::ProgressBar;
use iree_llm::{Llm, Response};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::request::{self, Defaults};
use crate::flights::{self, Work, has_stopped};
use crate::lines::{Line, Lines};
use crate::progress::Progress;
use crate::readable::Readable;

/// What has been done.
#[derive(Debug, Default)]
pub struct Summary {
    /// Prompts that have their answers.
    pub answered: usize,
    /// Lines that have none, and said why.
    pub failed: usize,
    /// Prompts that Ctrl-C left without.
    pub unfinished: usize,
    /// Tokens of all answers.
    pub tokens: usize,
    /// Whether Ctrl-C ended it.
    pub interrupted: bool,
    /// From the first line to the last answer.
    pub took: Duration,
}

impl Summary {
    /// One line for people.
    pub fn line(&self) -> String {
        let &Self { answered, tokens, failed, unfinished, took, .. } = self;
        flights::summary(("answered", answered), tokens, [failed, unfinished], took)
    }
}

/// A line whose answer comes.
pub struct Flight {
    id: Value,
    line: usize,
    bytes: usize,
}

/// Where answers go.
pub struct Output<'a> {
    /// What it is called in errors.
    pub name: String,
    /// What takes them.
    pub file: &'a mut dyn Write,
}

/// Prompts on their way from lines to answers.
pub struct Prompts<'a> {
    llm: &'a Llm,
    defaults: &'a Defaults,
    output: Output<'a>,
    progress: &'a Progress,
    bar: ProgressBar,
    /// Tokens of all answers, so far.
    tokens: Arc<AtomicUsize>,
    summary: Summary,
    start: Instant,
}

/// An answer.
pub struct Whole {
    text: String,
    tokens: usize,
    finish_reason: &'static str,
}

impl<'a> Prompts<'a> {
    /// None yet.
    pub fn new(
        llm: &'a Llm,
        defaults: &'a Defaults,
        output: Output<'a>,
        progress: &'a Progress,
    ) -> Self {
        let (summary, bar) = (Summary::default(), ProgressBar::hidden());
        let (tokens, start) = (Arc::default(), Instant::now());
        Self { llm, defaults, output, progress, bar, tokens, summary, start }
    }

    /// Answers all of `lines`, `most` of them at a time, or until Ctrl-C.
    ///
    /// # Errors
    ///
    /// Lines can be read or answers written no further, or the model has stopped. What was answered before is in the output.
    pub fn answer(mut self, lines: &Lines, most: usize) -> Result<Summary> {
        self.bar = self.progress.prompts(lines.bytes);
        let (unfinished, interrupted) = flights::fly(None, lines, most, &mut self)?;
        self.bar.finish_and_clear();
        let (tokens, took) = (self.tokens(), self.start.elapsed());
        Ok(Summary { tokens, unfinished, interrupted, took, ..self.summary })
    }

    fn tokens(&self) -> usize {
        self.tokens.load(Ordering::Relaxed)
    }
}

impl Work for Prompts<'_> {
    type Done = (Flight, Result<Whole>);

    fn begin(&mut self, line: Line, flights: &mut JoinSet<Self::Done>) -> Result<()> {
        if line.is_blank() {
            return Ok(());
        }
        let (id, asked) = request::read(&line, self.defaults);
        let flight = Flight { id, line: line.number, bytes: line.text.len() + 1 };
        match asked.and_then(|(asked, ask)| Ok(asked.of(self.llm, &ask)?)) {
            Ok(response) => {
                let tokens = self.tokens.clone();
                flights.spawn(async move { (flight, whole(response, &tokens).await) });
                Ok(())
            }
            Err(error) => self.end((flight, Err(error))),
        }
    }

    fn end(&mut self, (Flight { id, line, bytes }, whole): Self::Done) -> Result<()> {
        self.bar.inc(bytes as u64);
        let written = match whole {
            Ok(Whole { text, tokens, finish_reason }) => {
                self.summary.answered += 1;
                json!({"id": id, "text": text, "tokens": tokens, "finish_reason": finish_reason})
            }
            // No other line would have an answer.
            Err(error) if has_stopped(&error) => return Err(error),
            Err(error) => {
                self.summary.failed += 1;
                let error = crate::chain(&error);
                self.progress.report(&format!("error: line {line}: {error}"));
                json!({"id": id, "line": line, "error": error})
            }
        };
        let Output { name, file } = &mut self.output;
        writeln!(file, "{written}").and_then(|()| file.flush()).with_context(|| name.clone())
    }

    fn show(&self) {
        let rate = self.tokens() as f64 / self.start.elapsed().as_secs_f64();
        self.bar.set_message(format!("{} done, {rate:.1} tok/s", self.summary.answered));
    }
}

/// All of an answer, whose tokens are counted as they come.
async fn whole(mut response: Response, tokens: &AtomicUsize) -> Result<Whole> {
    let (mut readable, mut text, mut counted) = (Readable::default(), String::new(), 0);
    while let Some(part) = response.recv().await {
        text += &readable.push(part?);
        let now = response.tokens().len();
        tokens.fetch_add(now - std::mem::replace(&mut counted, now), Ordering::Relaxed);
    }
    tokens.fetch_add(response.tokens().len() - counted, Ordering::Relaxed);
    let end = response.end().context("the model has stopped")?;
    Ok(Whole { text, tokens: end.timings.tokens, finish_reason: end.reason.as_str() })
}

//! Answers prompts together: lines in, requests to a model, lines out.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Error, Result};
use indicatif::ProgressBar;
use iree_llm::{Llm, Response};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::request::{self, Defaults};
use crate::interrupt;
use crate::lines::{Line, Lines, Next};
use crate::progress::Progress;
use crate::readable::Readable;

/// How long Ctrl-C may wait while nothing runs and no line comes.
const PATIENCE: Duration = Duration::from_millis(100);

/// How long a line may wait while something runs.
const LOOK: Duration = Duration::from_millis(10);

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
        let seconds = self.took.as_secs_f64();
        let mut line = format!(
            "answered {}, {} tokens in {seconds:.2} s ({:.1} tok/s)",
            self.answered,
            self.tokens,
            self.tokens as f64 / seconds.max(1e-9),
        );
        for (count, what) in [(self.failed, "failed"), (self.unfinished, "not finished")] {
            if count > 0 {
                line += &format!(", {what}: {count}");
            }
        }
        line
    }
}

/// A line whose answer comes.
struct Flight {
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
    /// Most requests that are submitted at a time.
    window: usize,
    output: Output<'a>,
    progress: &'a Progress,
    bar: ProgressBar,
    flights: JoinSet<(Flight, Result<Whole>)>,
    /// Tokens of all answers, so far.
    tokens: Arc<AtomicUsize>,
    summary: Summary,
    start: Instant,
}

/// An answer.
struct Whole {
    text: String,
    tokens: usize,
    finish_reason: &'static str,
}

impl<'a> Prompts<'a> {
    /// None yet; `window` of them are submitted at most.
    pub fn new(
        llm: &'a Llm,
        defaults: &'a Defaults,
        window: usize,
        output: Output<'a>,
        progress: &'a Progress,
    ) -> Self {
        let (flights, summary, bar) = (JoinSet::new(), Summary::default(), ProgressBar::hidden());
        let (tokens, start) = (Arc::default(), Instant::now());
        Self { llm, defaults, window, output, progress, bar, flights, tokens, summary, start }
    }

    fn tokens(&self) -> usize {
        self.tokens.load(Ordering::Relaxed)
    }

    /// Answers all of `lines`, or until Ctrl-C.
    ///
    /// # Errors
    ///
    /// Lines can be read or answers written no further. What was answered before is in the output.
    pub fn answer(mut self, lines: &Lines) -> Result<Summary> {
        self.bar = self.progress.prompts(lines.bytes);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let generating = interrupt::generating();
        runtime.block_on(self.answer_all(lines))?;
        self.summary.interrupted = interrupt::stopped();
        drop(generating);
        self.bar.finish_and_clear();
        (self.summary.unfinished, self.summary.tokens) = (self.flights.len(), self.tokens());
        self.summary.took = self.start.elapsed();
        Ok(self.summary)
    }

    async fn answer_all(&mut self, lines: &Lines) -> Result<()> {
        let mut more = true;
        while (more || !self.flights.is_empty()) && !interrupt::stopped() {
            while more && self.flights.len() < self.window && !interrupt::stopped() {
                let idle = self.flights.is_empty();
                match lines.next(if idle { PATIENCE } else { Duration::ZERO })? {
                    Next::Line(line) if line.is_blank() => {}
                    Next::Line(line) => self.submit(&line)?,
                    Next::Later if idle => {}
                    Next::Later => break,
                    Next::End => more = false,
                }
            }
            if let Ok(Some(ended)) = tokio::time::timeout(LOOK, self.flights.join_next()).await {
                let (flight, whole) = ended?;
                self.end(flight, whole)?;
            }
            let rate = self.tokens() as f64 / self.start.elapsed().as_secs_f64();
            self.bar.set_message(format!("{} done, {rate:.1} tok/s", self.summary.answered));
        }
        Ok(())
    }

    fn submit(&mut self, line: &Line) -> Result<()> {
        let (id, asked) = request::read(line, self.defaults);
        let flight = Flight { id, line: line.number, bytes: line.text.len() + 1 };
        match asked.and_then(|(asked, ask)| Ok(asked.of(self.llm, &ask)?)) {
            Ok(response) => {
                let tokens = self.tokens.clone();
                self.flights.spawn(async move { (flight, whole(response, &tokens).await) });
                Ok(())
            }
            Err(error) => self.end(flight, Err(error)),
        }
    }

    fn end(&mut self, Flight { id, line, bytes }: Flight, whole: Result<Whole>) -> Result<()> {
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
}

/// Whether the model has, as far as one can see.
fn has_stopped(error: &Error) -> bool {
    use xla_session::Error::{StepsFailed, Stopped};
    let stopped =
        |it: &iree_llm::Error| matches!(it, iree_llm::Error::Engine(Stopped | StepsFailed { .. }));
    error.downcast_ref().is_some_and(stopped)
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

//! Answers prompts together: lines in, requests on a batcher, lines out.

use std::collections::HashMap;
use std::io::Write;
use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use indicatif::ProgressBar;
use serde_json::{Value, json};
use text::TextStream;
use xla_session::Batcher;
use xla_session::batching::Ended;
use xla_session::scheduler::RequestId;

use super::request::{self, Asked, Defaults};
use crate::form::Kept;
use crate::interrupt;
use crate::lines::{Line, Lines, Next};
use crate::progress::Progress;
use crate::readable::{Readable, Writing};

/// How long Ctrl-C may wait while nothing runs and no line comes.
const PATIENCE: Duration = Duration::from_millis(100);

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

/// A prompt whose answer comes.
struct Flight {
    id: Value,
    line: usize,
    bytes: usize,
    stream: TextStream,
    writing: Writing,
    text: String,
    /// The tokenizer's.
    failure: Option<text::Error>,
    /// The form's.
    unkept: Option<Arc<OnceLock<String>>>,
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
    batcher: Batcher,
    defaults: &'a Defaults<'a>,
    /// Most requests that are submitted at a time.
    window: usize,
    output: Output<'a>,
    progress: &'a Progress,
    bar: ProgressBar,
    flights: HashMap<RequestId, Flight>,
    summary: Summary,
    start: Instant,
}

impl<'a> Prompts<'a> {
    /// None yet; `window` of them are submitted at most.
    pub fn new(
        batcher: Batcher,
        defaults: &'a Defaults<'a>,
        window: usize,
        output: Output<'a>,
        progress: &'a Progress,
    ) -> Self {
        let (flights, summary, bar) = (HashMap::new(), Summary::default(), ProgressBar::hidden());
        let start = Instant::now();
        Self { batcher, defaults, window, output, progress, bar, flights, summary, start }
    }

    /// Answers all of `lines`, or until Ctrl-C.
    ///
    /// # Errors
    ///
    /// The engine's, or lines can be read or answers written no further. What was answered before is
    /// in the output.
    pub fn answer(mut self, lines: &Lines) -> Result<Summary> {
        self.bar = self.progress.prompts(lines.bytes);
        let generating = interrupt::generating();
        let mut more = true;
        while (more || !self.batcher.is_idle()) && !interrupt::stopped() {
            while more && self.batcher.requests() < self.window && !interrupt::stopped() {
                let patience = if self.batcher.is_idle() { PATIENCE } else { Duration::ZERO };
                match lines.next(patience)? {
                    Next::Line(line) if line.is_blank() => {}
                    Next::Line(line) => self.submit(&line)?,
                    Next::Later if self.batcher.is_idle() => {}
                    Next::Later => break,
                    Next::End => more = false,
                }
            }
            self.advance()?;
        }
        self.summary.interrupted = interrupt::stopped();
        drop(generating);
        self.bar.finish_and_clear();
        self.summary.unfinished = self.flights.len();
        self.summary.took = self.start.elapsed();
        Ok(self.summary)
    }

    fn submit(&mut self, line: &Line) -> Result<()> {
        let (id, asked) = request::read(line, self.defaults);
        let submitted = asked.and_then(|Asked { request, stream, writing, failure }| {
            Ok((self.batcher.submit(request)?, stream, writing, failure))
        });
        let (number, bytes) = (line.number, line.text.len() + 1);
        match submitted {
            Ok((request, stream, writing, unkept)) => {
                let (line, text, failure) = (number, String::new(), None);
                let flight = Flight { id, line, bytes, stream, writing, text, failure, unkept };
                self.flights.insert(request, flight);
            }
            Err(error) => {
                self.bar.inc(bytes as u64);
                self.fail(&id, number, &error)?;
            }
        }
        Ok(())
    }

    /// Runs a step, and writes what has ended with it.
    fn advance(&mut self) -> Result<()> {
        let Self { batcher, flights, .. } = self;
        let mut tokens = 0;
        let ended = batcher.advance(&mut |request, token| {
            tokens += 1;
            let Some(flight) = flights.get_mut(&request) else { return ControlFlow::Break(()) };
            match flight.stream.push(token.id) {
                Ok((piece, stopped)) => {
                    flight.text += &piece;
                    if stopped { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                }
                Err(error) => {
                    flight.failure = Some(error);
                    ControlFlow::Break(())
                }
            }
        });
        let ended = match ended {
            Err(xla_session::Error::Request { request, source }) => {
                self.batcher.cancel(request);
                if let Some(Flight { id, line, bytes, .. }) = self.flights.remove(&request) {
                    self.bar.inc(bytes as u64);
                    self.fail(&id, line, &(*source).into())?;
                }
                Vec::new()
            }
            ended => ended?,
        };
        self.summary.tokens += tokens;
        for (request, ended) in ended {
            if let Some(flight) = self.flights.remove(&request) {
                self.bar.inc(flight.bytes as u64);
                self.end(flight, ended)?;
            }
        }
        let rate = self.summary.tokens as f64 / self.start.elapsed().as_secs_f64();
        self.bar.set_message(format!("{} done, {rate:.1} tok/s", self.summary.answered));
        Ok(())
    }

    fn end(&mut self, flight: Flight, ended: Ended) -> Result<()> {
        let Flight { id, line, stream, writing, mut text, failure, unkept, .. } = flight;
        if let Err(error) = Kept::check(unkept.as_ref()) {
            return self.fail(&id, line, &error);
        }
        match failure.map_or_else(|| stream.finish(), Err) {
            Ok(rest) => text += &rest,
            Err(error) => return self.fail(&id, line, &error.into()),
        }
        self.summary.answered += 1;
        self.write(&json!({
            "id": id,
            "text": Readable::whole(writing.style, &text),
            "tokens": ended.timings.tokens,
            "finish_reason": ended.reason.as_str(),
        }))
    }

    fn fail(&mut self, id: &Value, line: usize, error: &anyhow::Error) -> Result<()> {
        self.summary.failed += 1;
        let error = crate::chain(error);
        self.progress.report(&format!("error: line {line}: {error}"));
        self.write(&json!({"id": id, "line": line, "error": error}))
    }

    fn write(&mut self, line: &Value) -> Result<()> {
        let Output { name, file } = &mut self.output;
        writeln!(file, "{line}").and_then(|()| file.flush()).with_context(|| name.clone())
    }
}

//! Lines that are answered together: each is asked for as soon as there is room, and its answer taken when it comes.

use std::time::Duration;

use anyhow::{Error, Result};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::interrupt;
use crate::lines::{Line, Lines, Next};

/// How long Ctrl-C may wait while nothing runs and no line comes.
const PATIENCE: Duration = Duration::from_millis(100);

/// How long a line may wait while something runs.
const LOOK: Duration = Duration::from_millis(10);

/// What became of lines, in one of its own for people: how many are `done` ("answered"), with so many tokens.
pub fn summary(
    done: (&str, usize),
    tokens: usize,
    [failed, unfinished]: [usize; 2],
    took: Duration,
) -> String {
    let (what, count) = done;
    let seconds = took.as_secs_f64();
    let rate = tokens as f64 / seconds.max(1e-9);
    let mut line = format!("{what} {count}, {tokens} tokens in {seconds:.2} s ({rate:.1} tok/s)");
    for (count, what) in [(failed, "failed"), (unfinished, "not finished")] {
        if count > 0 {
            line += &format!(", {what}: {count}");
        }
    }
    line
}

/// What is done with lines.
pub trait Work {
    /// What comes of one.
    type Done: Send + 'static;

    /// Begins with `line`: what will come of it goes to `flights`, unless that is known at once.
    fn begin(&mut self, line: Line, flights: &mut JoinSet<Self::Done>) -> Result<()>;

    /// Takes what has come.
    fn end(&mut self, done: Self::Done) -> Result<()>;

    /// Shows how far it is, now and then.
    fn show(&self);
}

/// Does `work` with the `first` line, if there is one, and those behind it, `most` of them at a time, until their end or Ctrl-C.
/// Returns how many have begun and not ended, and whether it was that.
///
/// # Errors
///
/// Those of `work`, or lines can be read no further.
pub fn fly<W: Work>(
    first: Option<Line>,
    lines: &Lines,
    most: usize,
    work: &mut W,
) -> Result<(usize, bool)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
    let _interruptible = interrupt::generating();
    runtime.block_on(async {
        let (mut flights, mut more) = (JoinSet::new(), true);
        if let Some(line) = first {
            work.begin(line, &mut flights)?;
        }
        while (more || !flights.is_empty()) && !interrupt::stopped() {
            while more && flights.len() < most && !interrupt::stopped() {
                let idle = flights.is_empty();
                match lines.next(if idle { PATIENCE } else { Duration::ZERO })? {
                    Next::Line(line) => work.begin(line, &mut flights)?,
                    Next::Later if idle => {}
                    Next::Later => break,
                    Next::End => more = false,
                }
            }
            if let Ok(Some(done)) = timeout(LOOK, flights.join_next()).await {
                work.end(done?)?;
            }
            while let Some(done) = flights.try_join_next() {
                work.end(done?)?;
            }
            work.show();
        }
        Ok((flights.len(), interrupt::stopped()))
    })
}

/// Whether the model has, as far as one can see: no other line would have an answer.
pub fn has_stopped(error: &Error) -> bool {
    use xla_session::Error::{StepsFailed, Stopped};
    let has = |it: &xla_session::Error| matches!(it, Stopped | StepsFailed { .. });
    match error.downcast_ref() {
        Some(iree_llm::Error::Engine(error)) => has(error),
        _ => error.downcast_ref().is_some_and(has),
    }
}

//! Requests that belong together, on their way through the thread that steps, and the text that comes of them.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use text::{StopStrings, TextStream, Tokenizer};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use xla_session::FinishReason;
use xla_session::batching::{Ended, Likelihood, Listener, Request, Token};

use crate::Problem;
use crate::lines::Lines;
use crate::metrics::Numbers;

/// A request.
pub(crate) struct Asked {
    pub request: Request,
    pub stops: StopStrings,
    /// Special tokens that the text has as they are written.
    pub shown: Vec<u32>,
    /// Which lines of it there may be, where not all.
    pub lines: Option<Lines>,
    /// Where its constraint says why it has failed.
    pub failure: Arc<OnceLock<String>>,
    /// How long it may take from its arrival on.
    pub timeout: Option<Duration>,
}

/// What comes of requests, each event with the number of the one that it is of.
pub(crate) struct Events {
    pub receiver: mpsc::UnboundedReceiver<(usize, Event)>,
    /// When nobody waits any more, whatever step runs then.
    pub deadline: Option<tokio::time::Instant>,
}

impl Events {
    /// The next one; none where the model has stopped.
    pub async fn next(&mut self) -> Option<(usize, Event)> {
        let next = self.receiver.recv();
        let Some(deadline) = self.deadline else { return next.await };
        let late = |_| Some((0, Event::Failed(Problem::too_late())));
        tokio::time::timeout_at(deadline, next).await.unwrap_or_else(late)
    }
}

/// What comes of a request.
#[derive(Debug)]
pub(crate) enum Event {
    /// The tokens that it begins with, and the text that each made certain; whether it is asked how likely tokens are.
    Begun { tokens: Vec<(u32, String)>, likely: bool },
    /// One more token, and the text that is certain now: often none.
    Token { id: u32, text: String, likelihood: Option<Likelihood> },
    /// The end, the text that had been held back, and the stop string that was found.
    Ended { text: String, ended: Ended, stop: Option<String> },
    /// There will be no answer.
    Failed(Problem),
}

/// One of the requests.
struct Part {
    /// Until its end.
    stream: Option<TextStream>,
    lines: Option<Lines>,
    /// What it begins with.
    begun: Vec<(u32, String)>,
    likely: bool,
    prompt_tokens: u64,
    /// Of its arrival, or of its last token.
    clock: Instant,
    /// Which step made its last token.
    step: Option<u64>,
    /// The constraint's.
    unkept: Arc<OnceLock<String>>,
    /// Until its end.
    place: Option<OwnedSemaphorePermit>,
}

/// Hears of requests that came together: makes text of their tokens, counts, and tells whoever waits.
pub(crate) struct Heard {
    parts: Vec<Part>,
    /// Those that have not ended.
    left: u64,
    arrived: Instant,
    /// When nobody wants them any more.
    deadline: Option<Instant>,
    accepted: Option<oneshot::Sender<Result<(), Problem>>>,
    /// Where what comes of them goes, with the number of the request.
    events: mpsc::UnboundedSender<(usize, Event)>,
    numbers: Arc<Mutex<Numbers>>,
    /// Whether the server has ended all.
    over: Arc<AtomicBool>,
}

/// Who waits for requests: first for whether they are taken on.
pub(crate) struct Waiting {
    pub accepted: oneshot::Receiver<Result<(), Problem>>,
    pub events: Events,
}

impl Heard {
    /// `asked`, each with a place of `places`, which came at `arrived`: what is to run, who hears of it, and who waits.
    pub fn new(
        asked: Vec<Asked>,
        mut places: OwnedSemaphorePermit,
        arrived: Instant,
        tokenizer: &Tokenizer,
        numbers: Arc<Mutex<Numbers>>,
        over: Arc<AtomicBool>,
    ) -> (Vec<Request>, Self, Waiting) {
        let timeout = asked.iter().filter_map(|it| it.timeout).min();
        let deadline = timeout.and_then(|timeout| arrived.checked_add(timeout));
        let (mut requests, mut parts) = (Vec::new(), Vec::new());
        for Asked { mut request, stops, shown, lines, failure: unkept, .. } in asked {
            let detokenizer = tokenizer.detokenizer(&request.prompt).showing(shown);
            let mut stream = TextStream::new(detokenizer, stops);
            let begun = begin(&mut request, &mut stream);
            parts.push(Part {
                stream: Some(stream),
                lines,
                begun,
                likely: request.likelihood.is_some(),
                prompt_tokens: request.prompt.len() as u64,
                clock: arrived,
                step: None,
                unkept,
                place: Some(places.split(1).expect("a place for each")),
            });
            requests.push(request);
        }
        let (events, receiver) = mpsc::unbounded_channel();
        let (accepted, acceptance) = oneshot::channel();
        let left = parts.len() as u64;
        let accepted = Some(accepted);
        let heard = Self { parts, left, arrived, deadline, accepted, events, numbers, over };
        let events = Events { receiver, deadline: deadline.map(Into::into) };
        (requests, heard, Waiting { accepted: acceptance, events })
    }

    fn numbers(&self) -> MutexGuard<'_, Numbers> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whoever is not there any more has no use for it.
    fn send(&self, index: usize, event: Event) {
        let _ = self.events.send((index, event));
    }

    /// Ends all, for the `index`-th has failed: nobody waits for the others any more.
    fn fail(&mut self, index: usize, problem: Problem) {
        self.numbers().failed += self.left;
        // Their places are free for whoever sees the end.
        self.parts.clear();
        self.send(index, Event::Failed(problem));
    }

    fn refuse(&mut self, problem: Problem) {
        if let Some(accepted) = self.accepted.take() {
            let _ = accepted.send(Err(problem));
        }
    }

    /// The end of the `index`-th answer.
    fn end(&mut self, index: usize, mut ended: Ended) -> Result<Event, Problem> {
        let part = &mut self.parts[index];
        if let Some(why) = part.unkept.get() {
            return Err(Problem::unkept(why));
        }
        let stream = part.stream.take().expect("it ends once");
        let stop = stream.stopped_by().map(str::to_owned);
        if stop.is_some() {
            ended.reason = FinishReason::Stop;
        }
        let mut text = stream.finish().map_err(|error| Problem::internal(error.to_string()))?;
        if let Some(mut lines) = part.lines.take() {
            text = lines.push(&text).0;
            if lines.is_over() && stop.is_none() {
                ended.reason = FinishReason::Length;
            }
            text += &lines.finish();
        }
        self.numbers().ended(&ended, self.arrived.elapsed());
        Ok(Event::Ended { text, ended, stop })
    }
}

impl Listener for Heard {
    fn accepted(&mut self) -> ControlFlow<()> {
        // One that was still being read when the others were ended.
        if self.over.load(Ordering::SeqCst) {
            self.refuse(Problem::stopping());
            return ControlFlow::Break(());
        }
        if let Some(why) = self.parts.iter().find_map(|part| part.unkept.get()) {
            let problem = Problem::field("answer_token_ids", format!("are no answer: {why}"));
            self.refuse(problem);
            return ControlFlow::Break(());
        }
        for index in 0..self.parts.len() {
            let Part { begun, likely, .. } = &mut self.parts[index];
            let (tokens, likely) = (std::mem::take(begun), *likely);
            if !tokens.is_empty() {
                self.send(index, Event::Begun { tokens, likely });
            }
        }
        // Nobody there is seen before the next step.
        if let Some(accepted) = self.accepted.take() {
            let _ = accepted.send(Ok(()));
        }
        ControlFlow::Continue(())
    }

    fn is_wanted(&mut self) -> bool {
        if self.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            self.fail(0, Problem::too_late());
            return false;
        }
        if self.over.load(Ordering::SeqCst) {
            self.fail(0, Problem::cut_off());
            return false;
        }
        if self.events.is_closed() {
            self.numbers().cancelled += self.left;
            return false;
        }
        true
    }

    fn token(&mut self, index: usize, token: Token, step: u64) -> ControlFlow<()> {
        let now = Instant::now();
        let part = &mut self.parts[index];
        let (last, clock) = (part.step.replace(step), std::mem::replace(&mut part.clock, now));
        let prompt_tokens = part.prompt_tokens;
        let mut numbers = self.numbers();
        match last {
            None => {
                numbers.time_to_first_token.observe(now - clock);
                numbers.prompt_tokens += prompt_tokens;
            }
            // As vLLM counts: tokens that were guessed or forced come together.
            Some(last) if last == step => {}
            Some(_) => numbers.between_tokens.observe(now - clock),
        }
        numbers.tokens += 1;
        drop(numbers);
        let Part { stream: Some(stream), lines, .. } = &mut self.parts[index] else {
            return ControlFlow::Break(());
        };
        let (mut text, mut is_over) = stream.push(token.id);
        if let Some(lines) = lines {
            let over;
            (text, over) = lines.push(&text);
            is_over |= over;
        }
        let Token { id, likelihood, .. } = token;
        self.send(index, Event::Token { id, text, likelihood });
        if is_over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn ended(&mut self, index: usize, ended: Ended) -> ControlFlow<()> {
        let end = self.end(index, ended);
        self.parts[index].place = None;
        match end {
            Ok(event) => {
                self.left -= 1;
                self.send(index, event);
                ControlFlow::Continue(())
            }
            Err(problem) => {
                self.fail(index, problem);
                ControlFlow::Break(())
            }
        }
    }

    fn failed(&mut self, error: xla_session::Error) {
        use xla_session::Error;
        if self.accepted.is_some() {
            let stopped = matches!(error, Error::Stopped);
            return self.refuse(if stopped {
                Problem::stopping()
            } else {
                Problem::engine(&error)
            });
        }
        let problem = match error {
            Error::Stopped => Problem::cut_off(),
            Error::StepsFailed { source, .. } => {
                Problem::internal(format!("a step failed: {source}"))
            }
            error => Problem::internal(error.to_string()),
        };
        self.fail(0, problem);
    }
}

/// The tokens that the answer to `request` begins with, and the text that each made certain.
fn begin(request: &mut Request, stream: &mut TextStream) -> Vec<(u32, String)> {
    let mut begun = Vec::new();
    for &id in &request.answer {
        let (text, is_over) = stream.push(id);
        begun.push((id, text));
        if is_over {
            // It is all there: nothing follows a stop string.
            request.max_tokens = 0;
        }
    }
    begun
}

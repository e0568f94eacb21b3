//! The thread that steps a model.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, RecvError, TryRecvError};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use text::{StopStrings, TextStream, Tokenizer};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};
use xla_session::batching::{Ended, Likelihood, Request, RequestId};
use xla_session::{Batcher, FinishReason};

use crate::Problem;
use crate::metrics::Numbers;
use crate::model::Shared;

/// Failed steps, one after the other, until what runs is given up.
const PATIENCE: u32 = 3;

/// What the thread is told.
pub(crate) enum Command {
    Submit(Submission),
    /// End all requests, and begin no more.
    CutOff,
}

/// A request.
pub(crate) struct Asked {
    pub request: Request,
    pub stops: StopStrings,
    /// Special tokens that the text has as they are written.
    pub shown: Vec<u32>,
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

/// Requests that belong together: all are taken, or none is.
pub(crate) struct Submission {
    pub requests: Vec<Asked>,
    /// A place for each.
    pub places: OwnedSemaphorePermit,
    /// Where what comes of them goes, with the number of the request; they are cancelled when nobody is
    /// at the other end.
    pub events: mpsc::UnboundedSender<(usize, Event)>,
    pub accepted: oneshot::Sender<Result<(), Problem>>,
    pub arrived: Instant,
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

struct Job {
    index: usize,
    events: mpsc::UnboundedSender<(usize, Event)>,
    stream: TextStream,
    /// Of its arrival, or of its last token.
    clock: Instant,
    arrived: Instant,
    /// Which step made its last token.
    step: Option<u64>,
    prompt_tokens: u64,
    /// The tokenizer's.
    failure: Option<text::Error>,
    /// The constraint's.
    unkept: Arc<OnceLock<String>>,
    /// When nobody wants it any more.
    deadline: Option<Instant>,
    _place: OwnedSemaphorePermit,
}

impl Job {
    /// Whoever is not there any more has no use for it.
    fn send(&self, event: Event) {
        let _ = self.events.send((self.index, event));
    }
}

pub(crate) struct Worker<'a> {
    batcher: Batcher,
    tokenizer: &'a Tokenizer,
    shared: &'a Shared,
    jobs: HashMap<RequestId, Job>,
    numbers: Numbers,
    steps: u64,
    /// Steps that have failed since the last one that did not.
    failures: u32,
    /// Whether nothing begins any more.
    over: bool,
}

impl<'a> Worker<'a> {
    pub fn new(batcher: Batcher, tokenizer: &'a Tokenizer, shared: &'a Shared) -> Self {
        let numbers = Numbers::new(batcher.statistics());
        let (jobs, over) = (HashMap::new(), false);
        Self { batcher, tokenizer, shared, jobs, numbers, steps: 0, failures: 0, over }
    }

    /// Steps until nobody is left who could ask for something.
    pub fn run(mut self, commands: &Receiver<Command>) {
        loop {
            if self.jobs.is_empty() {
                self.publish(None);
                match commands.recv() {
                    Ok(command) => self.obey(command),
                    Err(RecvError) => return,
                }
            }
            loop {
                match commands.try_recv() {
                    Ok(command) => self.obey(command),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => {
                        self.end_all(&Problem::cut_off());
                        break;
                    }
                }
            }
            self.drop_abandoned();
            // A step of nothing says nothing of the device.
            if !self.jobs.is_empty() {
                self.publish(Some(Instant::now()));
                self.step();
            }
        }
    }

    fn publish(&mut self, busy: Option<Instant>) {
        self.numbers.batcher = self.batcher.statistics();
        self.shared.publish(&self.numbers);
        self.shared.set_busy(busy);
    }

    fn obey(&mut self, command: Command) {
        match command {
            // One that was still being read when the others were ended.
            Command::Submit(late) if self.over => {
                let _ = late.accepted.send(Err(Problem::stopping()));
            }
            Command::Submit(submission) => self.submit(submission),
            Command::CutOff => {
                self.over = true;
                self.end_all(&Problem::cut_off());
            }
        }
    }

    fn submit(&mut self, submission: Submission) {
        let Submission { requests, mut places, events, accepted, arrived } = submission;
        let mut ids = Vec::new();
        for (index, asked) in requests.into_iter().enumerate() {
            let Asked { mut request, stops, shown, failure: unkept, timeout } = asked;
            let prompt_tokens = request.prompt.len() as u64;
            let likely = request.likelihood.is_some();
            let detokenizer = self.tokenizer.detokenizer(&request.prompt).showing(shown);
            let mut stream = TextStream::new(detokenizer, stops);
            let begun = begin(&mut request, &mut stream);
            let submitted = begun.and_then(|begun| {
                let id = self.batcher.submit(request).map_err(|error| Problem::engine(&error))?;
                ids.push(id);
                match unkept.get() {
                    Some(why) => {
                        Err(Problem::field("answer_token_ids", format!("are no answer: {why}")))
                    }
                    None => Ok((begun, id)),
                }
            });
            match submitted {
                Ok((tokens, id)) => {
                    let job = Job {
                        index,
                        events: events.clone(),
                        stream,
                        clock: arrived,
                        arrived,
                        step: None,
                        prompt_tokens,
                        failure: None,
                        unkept,
                        deadline: timeout.and_then(|timeout| arrived.checked_add(timeout)),
                        _place: places.split(1).expect("a place for each"),
                    };
                    if !tokens.is_empty() {
                        job.send(Event::Begun { tokens, likely });
                    }
                    self.jobs.insert(id, job);
                }
                Err(problem) => {
                    for id in ids {
                        self.batcher.cancel(id);
                        self.jobs.remove(&id);
                    }
                    let _ = accepted.send(Err(problem));
                    return;
                }
            }
        }
        // Nobody there is seen before the next step.
        let _ = accepted.send(Ok(()));
    }

    /// Cancels what nobody waits for any more.
    fn drop_abandoned(&mut self) {
        let Self { batcher, jobs, numbers, .. } = self;
        let now = Instant::now();
        jobs.retain(|id, job| {
            let late = job.deadline.is_some_and(|deadline| deadline <= now);
            if late {
                numbers.failed += 1;
                job.send(Event::Failed(Problem::too_late()));
            } else if job.events.is_closed() {
                numbers.cancelled += 1;
            } else {
                return true;
            }
            batcher.cancel(*id);
            false
        });
    }

    fn end_all(&mut self, problem: &Problem) {
        for (id, job) in self.jobs.drain() {
            self.batcher.cancel(id);
            self.numbers.failed += 1;
            job.send(Event::Failed(problem.clone()));
        }
    }

    /// Ends all that belong to a request that has failed, whose `events` nobody waits for any more.
    fn end_siblings(&mut self, events: &mpsc::UnboundedSender<(usize, Event)>) {
        let Self { batcher, jobs, numbers, .. } = self;
        jobs.retain(|id, job| {
            let is_sibling = job.events.same_channel(events);
            if is_sibling {
                batcher.cancel(*id);
                numbers.failed += 1;
            }
            !is_sibling
        });
    }

    fn step(&mut self) {
        let Self { batcher, jobs, numbers, steps, .. } = self;
        *steps += 1;
        let step = *steps;
        let ended = batcher.advance(&mut |request, token| {
            let Some(job) = jobs.get_mut(&request) else { return ControlFlow::Break(()) };
            let now = Instant::now();
            match job.step.replace(step) {
                None => {
                    numbers.time_to_first_token.observe(now - job.clock);
                    numbers.prompt_tokens += job.prompt_tokens;
                }
                // As vLLM counts: tokens that were guessed or forced come together.
                Some(last) if last == step => {}
                Some(_) => numbers.between_tokens.observe(now - job.clock),
            }
            job.clock = now;
            numbers.tokens += 1;
            let (id, likelihood) = (token.id, token.likelihood);
            match job.stream.push(id) {
                Ok((text, stopped)) => {
                    job.send(Event::Token { id, text, likelihood });
                    if stopped { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                }
                Err(error) => {
                    job.failure = Some(error);
                    ControlFlow::Break(())
                }
            }
        });
        match ended {
            Ok(ended) => {
                if self.failures > 0 && self.batcher.statistics().steps > self.numbers.batcher.steps
                {
                    self.failures = 0;
                    self.shared.set_gave_up(None);
                }
                for (request, ended) in ended {
                    self.end(request, ended);
                }
            }
            Err(xla_session::Error::Request { request, source }) => {
                tracing::error!("a request was given up: {source}");
                self.batcher.cancel(request);
                if let Some(job) = self.jobs.remove(&request) {
                    self.numbers.failed += 1;
                    job.send(Event::Failed(Problem::internal(source.to_string())));
                    self.end_siblings(&job.events);
                }
            }
            Err(error) => {
                self.numbers.step_failures += 1;
                self.failures += 1;
                tracing::error!("a step failed ({} in a row): {error}", self.failures);
                if self.failures.is_multiple_of(PATIENCE) {
                    if self.failures > PATIENCE {
                        self.shared.set_gave_up(Some(Instant::now()));
                    }
                    self.end_all(&Problem::internal(format!("a step failed: {error}")));
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }

    fn end(&mut self, request: RequestId, ended: Ended) {
        let Some(job) = self.jobs.remove(&request) else { return };
        let Job { index, events, stream, failure, unkept, arrived, _place, .. } = job;
        let event = match unkept.get() {
            Some(why) => {
                self.numbers.failed += 1;
                let message = format!("the form of the answer could not be kept to: {why}");
                Event::Failed(Problem::internal(message))
            }
            None => self.whole(stream, failure, ended, arrived),
        };
        if matches!(event, Event::Failed(_)) {
            self.end_siblings(&events);
        }
        // Whoever sees the end finds the numbers as they are then.
        self.publish(Some(Instant::now()));
        drop(_place);
        let _ = events.send((index, event));
    }

    /// The end of an answer.
    fn whole(
        &mut self,
        stream: TextStream,
        failure: Option<text::Error>,
        mut ended: Ended,
        arrived: Instant,
    ) -> Event {
        let stop = stream.stopped_by().map(str::to_owned);
        if stop.is_some() {
            ended.reason = FinishReason::Stop;
        }
        match failure.map_or_else(|| stream.finish(), Err) {
            Ok(text) => {
                self.numbers.ended(&ended, arrived.elapsed());
                Event::Ended { text, ended, stop }
            }
            Err(error) => {
                self.numbers.failed += 1;
                Event::Failed(Problem::internal(error.to_string()))
            }
        }
    }
}

/// The tokens that the answer to `request` begins with, and the text that each made certain.
fn begin(request: &mut Request, stream: &mut TextStream) -> Result<Vec<(u32, String)>, Problem> {
    let mut begun = Vec::new();
    for &id in &request.answer {
        let (text, stopped) = stream.push(id).map_err(|it| Problem::internal(it.to_string()))?;
        begun.push((id, text));
        if stopped {
            // It is all there: nothing follows a stop string.
            request.max_tokens = 0;
        }
    }
    Ok(begun)
}

//! A batcher on a thread of its own, which any thread and any task may ask.

use std::collections::HashMap;
use std::fmt;
use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, RecvError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::{Answer, Batcher, Ended, Request, RequestId, Statistics, Token};
use crate::Error;

/// Failed steps, one after the other, until what runs is given up.
const PATIENCE: u32 = 3;

/// What is left to the device behind a failed step.
const PAUSE: Duration = Duration::from_millis(20);

/// A step that takes longer than this is none that comes to an end.
const STALLED: Duration = Duration::from_secs(120);

/// A [`Batcher`] on a thread of its own: requests come from any thread or task, at any time, and run together.
///
/// Dropping it ends all requests, and the thread behind the step that runs. One that takes longer than
/// [`LAST_STEP`](Self::LAST_STEP), as on a GPU that is lost, is not waited for.
///
/// ```no_run
/// # fn worker(batcher: xla_session::Batcher, prompt: Vec<u32>) -> Result<(), Box<dyn std::error::Error>> {
/// use xla_session::batching::{Piece, Request, Worker};
///
/// let worker = Worker::start(batcher, "tiny-tales")?;
/// let answer = worker.submit(Request { prompt, max_tokens: 20, ..Request::default() });
/// // This blocks; tasks await `answer.recv()`, or use it as a `Stream`.
/// for piece in answer {
///     match piece? {
///         Piece::Token(token) => println!("{}", token.id),
///         Piece::Ended(ended) => println!("{:?} after {:?}", ended.reason, ended.timings.total),
///     }
/// }
/// # Ok(()) }
/// ```
pub struct Worker {
    name: String,
    shared: Arc<Mutex<Shared>>,
    /// Taken away when the thread is to end.
    inbox: Option<Sender<Command>>,
    thread: Option<JoinHandle<()>>,
}

/// Hears what becomes of requests that were [submitted together](Worker::submit_all), on the thread that steps: no step
/// begins before it returns.
///
/// Where one of the requests fails, or is not wanted any more, all of them end, and the listener is dropped.
pub trait Listener: Send {
    /// All requests have been taken on. Where it breaks off none of them runs.
    fn accepted(&mut self) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    /// Whether somebody still waits for them: asked before each step.
    fn is_wanted(&mut self) -> bool {
        true
    }

    /// The next token of the request with the number `index`, of the step with the number `step`, which may have several.
    /// Breaks off where the answer ends with it.
    fn token(&mut self, index: usize, token: Token, step: u64) -> ControlFlow<()>;

    /// The end of one of the requests. Breaks off where the others end with it.
    fn ended(&mut self, index: usize, ended: Ended) -> ControlFlow<()>;

    /// One of them was refused, or cannot go on.
    fn failed(&mut self, error: Error);
}

enum Command {
    Submit(Vec<Request>, Box<dyn Listener>),
    CutOff,
}

/// What the thread tells of itself.
struct Shared {
    statistics: Statistics,
    /// Since when it has been at the step that it is at; `None` while there is nothing to do.
    busy: Option<Instant>,
    /// Since when all requests had to be given up twice, without a good step between.
    gave_up: Option<Instant>,
}

impl Worker {
    /// Longest that a step may take behind which the thread ends.
    pub const LAST_STEP: Duration = Duration::from_secs(10);

    /// Starts a thread called `name` that steps `batcher`.
    ///
    /// # Errors
    ///
    /// The system has no thread.
    pub fn start(batcher: Batcher, name: &str) -> std::io::Result<Self> {
        let statistics = batcher.statistics();
        let shared = Arc::new(Mutex::new(Shared { statistics, busy: None, gave_up: None }));
        let (inbox, commands) = channel();
        let steps = Steps::new(batcher, shared.clone());
        let thread = thread::Builder::new()
            .name(format!("steps of {name}"))
            .spawn(move || steps.run(&commands))?;
        Ok(Self { name: name.into(), shared, inbox: Some(inbox), thread: Some(thread) })
    }

    /// Lets `request` wait for its turn. Why it cannot run, if it cannot, is the first that comes of it.
    pub fn submit(&self, request: Request) -> Answer {
        let (listener, answer) = Answer::new();
        self.submit_all(vec![request], Box::new(listener));
        answer
    }

    /// Lets `requests`, of which all are taken on or none, wait for their turns. What becomes of them goes to `listener`.
    pub fn submit_all(&self, requests: Vec<Request>, listener: Box<dyn Listener>) {
        let inbox = self.inbox.as_ref().expect("it is there until this is dropped");
        // Without a thread, which has panicked, the listener is dropped.
        let _ = inbox.send(Command::Submit(requests, listener));
    }

    /// Ends all requests where they are, and takes on no more.
    pub fn cut_off(&self) {
        if let Some(inbox) = &self.inbox {
            // Without a thread there are none.
            let _ = inbox.send(Command::CutOff);
        }
    }

    /// What has been done before the step that runs.
    pub fn statistics(&self) -> Statistics {
        lock(&self.shared).statistics
    }

    /// Whether its thread is there, has not been at one step for minutes, and has not just had to give up all requests
    /// twice without a good step between, as with a device that is lost. Who is asked nothing more finds out after
    /// a while whether that goes on.
    pub fn is_alive(&self) -> bool {
        let ended = self.thread.as_ref().is_none_or(JoinHandle::is_finished);
        let shared = lock(&self.shared);
        !ended
            && shared.gave_up.is_none_or(|since| since.elapsed() >= STALLED)
            && shared.busy.is_none_or(|since| since.elapsed() < STALLED)
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.inbox = None;
        let Some(thread) = self.thread.take() else { return };
        // A listener had the last handle: the thread ends by itself.
        if thread.thread().id() == thread::current().id() {
            return;
        }
        let deadline = Instant::now() + Self::LAST_STEP;
        while !thread.is_finished() {
            if Instant::now() >= deadline {
                tracing::error!("the model {} is left at a step that does not end", self.name);
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
        // Its panic was reported when it happened.
        let _ = thread.join();
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Requests that were submitted together.
struct Group {
    listener: Box<dyn Listener>,
    /// Those that have not ended.
    requests: Vec<RequestId>,
}

/// What the thread has.
struct Steps {
    batcher: Batcher,
    shared: Arc<Mutex<Shared>>,
    groups: HashMap<u64, Group>,
    /// Of which group each request is, and its number there.
    places: HashMap<RequestId, (u64, usize)>,
    submitted: u64,
    step: u64,
    /// Steps that have failed since the last one that did not.
    failures: u32,
    /// Whether nothing begins any more.
    over: bool,
}

impl Steps {
    fn new(batcher: Batcher, shared: Arc<Mutex<Shared>>) -> Self {
        let (groups, places) = (HashMap::new(), HashMap::new());
        Self { batcher, shared, groups, places, submitted: 0, step: 0, failures: 0, over: false }
    }

    /// Steps until nobody is left who could ask for something.
    fn run(mut self, commands: &Receiver<Command>) {
        loop {
            if self.groups.is_empty() {
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
                        self.end_all(|| Error::Stopped);
                        break;
                    }
                }
            }
            self.drop_unwanted();
            // A step of nothing says nothing of the device.
            if !self.groups.is_empty() {
                self.publish(Some(Instant::now()));
                self.advance();
            }
        }
    }

    fn publish(&self, busy: Option<Instant>) {
        let mut shared = lock(&self.shared);
        shared.statistics = self.batcher.statistics();
        shared.busy = busy;
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Submit(_, mut late) if self.over => late.failed(Error::Stopped),
            Command::Submit(requests, listener) => self.submit(requests, listener),
            Command::CutOff => {
                self.over = true;
                self.end_all(|| Error::Stopped);
            }
        }
    }

    fn submit(&mut self, requests: Vec<Request>, mut listener: Box<dyn Listener>) {
        let mut taken = Vec::with_capacity(requests.len());
        let submitted = requests.into_iter().try_for_each(|request| {
            taken.push(self.batcher.submit(request)?);
            Ok(())
        });
        let runs = match submitted {
            Ok(()) => listener.accepted().is_continue(),
            Err(error) => {
                listener.failed(error);
                false
            }
        };
        if !runs {
            taken.into_iter().for_each(|id| {
                self.batcher.cancel(id);
            });
        } else if !taken.is_empty() {
            self.submitted += 1;
            let group = self.submitted;
            self.places.extend(taken.iter().enumerate().map(|(at, &id)| (id, (group, at))));
            self.groups.insert(group, Group { listener, requests: taken });
        }
    }

    /// Cancels what nobody waits for any more.
    fn drop_unwanted(&mut self) {
        let unwanted =
            |(&id, group): (&u64, &mut Group)| (!group.listener.is_wanted()).then_some(id);
        let unwanted: Vec<_> = self.groups.iter_mut().filter_map(unwanted).collect();
        for group in unwanted {
            self.end(group);
        }
    }

    /// Cancels what has not ended of `group`, whose listener is returned.
    fn end(&mut self, group: u64) -> Option<Box<dyn Listener>> {
        let Group { listener, requests } = self.groups.remove(&group)?;
        for id in requests {
            self.places.remove(&id);
            self.batcher.cancel(id);
        }
        Some(listener)
    }

    fn end_all(&mut self, error: impl Fn() -> Error) {
        let groups: Vec<_> = self.groups.keys().copied().collect();
        let listeners: Vec<_> = groups.into_iter().filter_map(|it| self.end(it)).collect();
        self.publish(None);
        for mut listener in listeners {
            listener.failed(error());
        }
    }

    fn advance(&mut self) {
        let Self { batcher, groups, places, step, .. } = self;
        *step += 1;
        let step = *step;
        let advanced = batcher.advance(&mut |request, token| {
            let place = places.get(&request).and_then(|(of, at)| Some((groups.get_mut(of)?, at)));
            let Some((group, at)) = place else { return ControlFlow::Break(()) };
            group.listener.token(*at, token, step)
        });
        match advanced {
            Ok(ended) => {
                if self.failures > 0 {
                    let mut shared = lock(&self.shared);
                    if self.batcher.statistics().steps > shared.statistics.steps {
                        self.failures = 0;
                        shared.gave_up = None;
                    }
                }
                if !ended.is_empty() {
                    // Whoever hears of an end finds the statistics as they are then.
                    self.publish(Some(Instant::now()));
                }
                for (request, ended) in ended {
                    self.ended(request, ended);
                }
            }
            Err(Error::Request { request, source }) => {
                tracing::error!("a request was given up: {source}");
                let group = self.places.get(&request).map(|(group, _)| *group);
                if let Some(mut listener) = group.and_then(|group| self.end(group)) {
                    self.publish(Some(Instant::now()));
                    listener.failed(*source);
                }
            }
            Err(error) => self.step_failed(error),
        }
    }

    fn ended(&mut self, request: RequestId, ended: Ended) {
        // The others of its group may have ended it meanwhile.
        let Some((group, at)) = self.places.remove(&request) else { return };
        let Some(its) = self.groups.get_mut(&group) else { return };
        its.requests.retain(|id| *id != request);
        if its.listener.ended(at, ended).is_break() || its.requests.is_empty() {
            self.end(group);
        }
    }

    fn step_failed(&mut self, error: Error) {
        self.failures += 1;
        tracing::error!("a step failed ({} in a row): {error}", self.failures);
        if self.failures.is_multiple_of(PATIENCE) {
            if self.failures > PATIENCE {
                lock(&self.shared).gave_up = Some(Instant::now());
            }
            let (times, source) = (self.failures, Arc::new(error));
            self.end_all(|| Error::StepsFailed { times, source: source.clone() });
        }
        thread::sleep(PAUSE);
    }
}

//! An answer, as it comes.

use std::borrow::BorrowMut;
use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use serde_json::{Map, Value, json};
use text::{Part, Reply, TextStream};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use xla_session::FinishReason;
use xla_session::batching::{Ended, Listener, Timings, Token};

use crate::form::FormError;
use crate::{Error, Llm, Result};

/// How an answer ended.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct End {
    /// Why.
    pub reason: FinishReason,
    /// The text that ended it, of those that were [to](crate::Ask::stop).
    pub stop: Option<String>,
    /// When what happened, and how many tokens there were.
    pub timings: Timings,
}

/// All of an answer.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Whole {
    /// What it says.
    pub content: String,
    /// What the model thought before that.
    pub reasoning: String,
    /// Which tools it calls.
    pub calls: Vec<Call>,
    /// How it ended.
    pub end: End,
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Call {
    /// What it is known by: made up, as models do not say any; nine letters and digits, which all templates take.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// What it is called with: JSON's text, if it [is whole](Self::is_whole).
    pub arguments: String,
}

impl Whole {
    /// The message that it is in a conversation that goes on, in the form of transformers, but for a call that was cut off
    /// in its arguments.
    pub fn message(&self) -> Value {
        let Self { content, reasoning, calls, .. } = self;
        let mut message = json!({"role": "assistant", "content": content});
        if !reasoning.is_empty() {
            message["reasoning_content"] = reasoning.as_str().into();
        }
        let call = |Call { id, name, arguments }: &Call| {
            let function = json!({"name": name, "arguments": arguments});
            json!({"id": id, "type": "function", "function": function})
        };
        let calls: Vec<_> = calls.iter().filter(|it| it.is_whole()).map(call).collect();
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        message
    }
}

impl Call {
    fn new(name: String) -> Self {
        let random = RandomState::new().build_hasher().finish();
        Self { id: format!("{random:016x}")[..9].to_owned(), name, arguments: String::new() }
    }

    /// Whether its arguments are whole: an answer may end within them, by its length, a text to stop at, or because the model
    /// goes no further.
    pub fn is_whole(&self) -> bool {
        self.arguments.trim().is_empty()
            || serde_json::from_str::<Map<_, _>>(&self.arguments).is_ok()
    }

    /// The message that tells the model what came of it.
    pub fn result(&self, content: &str) -> Value {
        let Self { id, name, .. } = self;
        json!({"role": "tool", "tool_call_id": id, "name": name, "content": content})
    }
}

/// An answer, as it comes: pieces of what the model says, thinks, and calls.
///
/// A `for` loop blocks its thread for it ([`blocking_recv`](Self::blocking_recv)); it is a [`Stream`] on any executor, whose
/// `next` is [`recv`](Self::recv). [`whole`](Self::whole) waits for all of it. Dropping it ends the answer.
#[derive(Debug)]
pub struct Response {
    events: UnboundedReceiver<Result<Event>>,
    /// Which goes on as long as somebody waits.
    _llm: Llm,
    prompt: Vec<u32>,
    /// Whether it has to end.
    stop: Arc<AtomicBool>,
    /// Those of what has been taken, and of what comes next.
    tokens: Vec<Token>,
    /// What has come and was not taken.
    parts: VecDeque<Part>,
    end: Option<End>,
    /// Whether nothing follows.
    over: bool,
}

#[derive(Debug)]
enum Event {
    Token(Token, Vec<Part>),
    End(Vec<Part>, End),
}

impl Response {
    /// What comes next, on any executor; `None` behind the end.
    ///
    /// # Errors
    ///
    /// The model fails, or [has stopped](xla_session::Error::Stopped). Nothing follows.
    pub async fn recv(&mut self) -> Option<Result<Part>> {
        std::future::poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await
    }

    /// Has it end with its next token: what is left of its text, and [its end](Self::end), still come. Dropping it ends it at
    /// once.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// The tokens that it is an answer to, with those that the chat template and the tokenizer have added.
    pub fn prompt(&self) -> &[u32] {
        &self.prompt
    }

    /// Its tokens so far: what is said of them may come later.
    pub fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// As [`recv`](Self::recv), for whoever has nothing else to do.
    ///
    /// # Errors
    ///
    /// As `recv`.
    ///
    /// # Panics
    ///
    /// Within an asynchronous task of tokio, whose thread it would block.
    pub fn blocking_recv(&mut self) -> Option<Result<Part>> {
        loop {
            if let Some(part) = self.parts.pop_front() {
                return Some(Ok(part));
            }
            if self.over {
                return None;
            }
            let event = self.events.blocking_recv();
            if let Some(error) = self.came(event) {
                return Some(Err(error));
            }
        }
    }

    /// How it ended, once that has come.
    pub fn end(&self) -> Option<&End> {
        self.end.as_ref()
    }

    /// All of it that has not been taken yet.
    ///
    /// # Errors
    ///
    /// As [`recv`](Self::recv).
    pub async fn whole(mut self) -> Result<Whole> {
        let mut gathered = Gathered::default();
        while let Some(part) = self.recv().await {
            gathered.add(part?);
        }
        gathered.whole(self.end)
    }

    /// As [`whole`](Self::whole), for whoever has nothing else to do.
    ///
    /// # Errors
    ///
    /// As [`recv`](Self::recv).
    ///
    /// # Panics
    ///
    /// Within an asynchronous task of tokio, whose thread it would block.
    pub fn blocking_whole(mut self) -> Result<Whole> {
        let mut gathered = Gathered::default();
        while let Some(part) = self.blocking_recv() {
            gathered.add(part?);
        }
        gathered.whole(self.end)
    }

    /// Notes what has come, and returns why nothing follows, if it is that.
    fn came(&mut self, event: Option<Result<Event>>) -> Option<Error> {
        match event {
            Some(Ok(Event::Token(token, parts))) => {
                self.tokens.push(token);
                self.parts.extend(parts);
            }
            Some(Ok(Event::End(parts, end))) => {
                self.parts.extend(parts);
                (self.end, self.over) = (Some(end), true);
            }
            Some(Err(error)) => {
                self.over = true;
                return Some(error);
            }
            // Whoever would have said the end is gone.
            None => {
                self.over = true;
                return Some(xla_session::Error::Stopped.into());
            }
        }
        None
    }
}

#[derive(Default)]
struct Gathered {
    content: String,
    reasoning: String,
    calls: Vec<Call>,
}

impl Gathered {
    fn add(&mut self, part: Part) {
        match part {
            Part::Content(text) => self.content += &text,
            Part::Reasoning(text) => self.reasoning += &text,
            Part::Call(name) => self.calls.push(Call::new(name)),
            Part::Arguments(text) => {
                if let Some(call) = self.calls.last_mut() {
                    call.arguments += &text;
                }
            }
        }
    }

    fn whole(self, end: Option<End>) -> Result<Whole> {
        let Self { content, reasoning, calls } = self;
        let end = end.ok_or(xla_session::Error::Stopped)?;
        Ok(Whole { content, reasoning, calls, end })
    }
}

/// What comes, one after the other, to whoever waits for it on a thread of their own.
///
/// # Panics
///
/// Its `next`, within an asynchronous task of tokio, whose thread it would block.
#[derive(Debug)]
pub struct Blocking<T>(T);

impl<T: BorrowMut<Response>> Iterator for Blocking<T> {
    type Item = Result<Part>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.borrow_mut().blocking_recv()
    }
}

impl IntoIterator for Response {
    type Item = Result<Part>;
    type IntoIter = Blocking<Self>;

    fn into_iter(self) -> Self::IntoIter {
        Blocking(self)
    }
}

impl IntoIterator for &mut Response {
    type Item = Result<Part>;
    type IntoIter = Blocking<Self>;

    fn into_iter(self) -> Self::IntoIter {
        Blocking(self)
    }
}

impl Stream for Response {
    type Item = Result<Part>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(part) = self.parts.pop_front() {
                return Poll::Ready(Some(Ok(part)));
            }
            if self.over {
                return Poll::Ready(None);
            }
            let event = ready!(self.events.poll_recv(context));
            if let Some(error) = self.came(event) {
                return Poll::Ready(Some(Err(error)));
            }
        }
    }
}

/// Makes text of tokens, and parts of text, on the thread that steps: an answer ends with the token that ends it.
pub(crate) struct Heard {
    /// Until the end.
    stream: Option<TextStream>,
    /// What tells parts apart; without it all is content.
    reply: Option<Reply>,
    /// What a form is called, if there is one, and why it could not be kept to.
    unkept: Option<(&'static str, Arc<OnceLock<String>>)>,
    /// Whether it may be as long as there is room.
    is_open: bool,
    /// Whether it has to end.
    stop: Arc<AtomicBool>,
    events: UnboundedSender<Result<Event>>,
}

impl Heard {
    /// What is heard of the answer to `prompt`, with who waits for it.
    pub fn new(
        llm: &Llm,
        prompt: Vec<u32>,
        stream: TextStream,
        reply: Option<Reply>,
        unkept: Option<(&'static str, Arc<OnceLock<String>>)>,
        is_open: bool,
    ) -> (Self, Response) {
        let (sender, events) = mpsc::unbounded_channel();
        let (stream, stop) = (Some(stream), Arc::<AtomicBool>::default());
        let heard = Self { stream, reply, unkept, is_open, stop: stop.clone(), events: sender };
        let (_llm, tokens, parts) = (llm.clone(), Vec::new(), VecDeque::new());
        (heard, Response { events, _llm, prompt, stop, tokens, parts, end: None, over: false })
    }

    /// Whoever is not there any more has no use for it.
    fn send(&self, event: Result<Event>) -> ControlFlow<()> {
        match self.events.send(event) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    }

    /// What `text` is of the answer, and what was held back of it, if no more comes.
    fn read(&mut self, text: String, is_last: bool) -> Vec<Part> {
        let mut parts = match &mut self.reply {
            Some(reply) => reply.push(&text),
            None if text.is_empty() => Vec::new(),
            None => vec![Part::Content(text)],
        };
        if let Some(reply) = self.reply.take_if(|_| is_last) {
            parts.extend(reply.finish());
        }
        parts
    }
}

impl Listener for Heard {
    fn is_wanted(&mut self) -> bool {
        !self.events.is_closed()
    }

    fn token(&mut self, _: usize, token: Token, _: u64) -> ControlFlow<()> {
        let Some(stream) = &mut self.stream else { return ControlFlow::Break(()) };
        let (text, is_over) = stream.push(token.id);
        let parts = self.read(text, false);
        self.send(Ok(Event::Token(token, parts)))?;
        if is_over || self.stop.load(Ordering::Relaxed) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }

    fn ended(&mut self, _: usize, ended: Ended) -> ControlFlow<()> {
        let Some(stream) = self.stream.take() else { return ControlFlow::Break(()) };
        if let Some((name, why)) =
            self.unkept.as_ref().and_then(|(name, it)| Some((*name, it.get()?)))
        {
            let message = format!("could not be kept to: {why}");
            let error = FormError { name, message, internal: true };
            return self.send(Err(error.into()));
        }
        let stop = stream.stopped_by().map(str::to_owned);
        let text = match stream.finish() {
            Ok(text) => text,
            Err(error) => return self.send(Err(error.into())),
        };
        let parts = self.read(text, true);
        let reason = match ended.reason {
            _ if stop.is_some() => FinishReason::Stop,
            FinishReason::Length if self.is_open => FinishReason::Context,
            reason => reason,
        };
        self.send(Ok(Event::End(parts, End { reason, stop, timings: ended.timings })))
    }

    fn failed(&mut self, error: xla_session::Error) {
        let _ = self.send(Err(error.into()));
    }
}

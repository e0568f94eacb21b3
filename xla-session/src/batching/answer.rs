//! What comes of a request, for whoever waits for it.

use std::ops::ControlFlow;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_core::Stream;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

use super::worker::Listener;
use super::{Ended, Token};
use crate::{Error, Result};

/// What comes of a request.
#[derive(Debug, Clone, PartialEq)]
pub enum Progress {
    /// One more token.
    Token(Token),
    /// The end: nothing follows.
    Ended(Ended),
}

/// The answer to a request of a [`Worker`](super::Worker), as it comes: tokens, and then the end, or why there is none.
///
/// It is an iterator, which blocks its thread, and a [`Stream`] on any executor; [`recv`](Self::recv) is a stream's `next`.
/// Tokens wait for whoever is slow. Dropping it cancels the request.
#[derive(Debug)]
pub struct Answer {
    progress: UnboundedReceiver<Result<Progress>>,
    /// Whether its end has come.
    over: bool,
}

impl Answer {
    /// With who fills it.
    pub(super) fn new() -> (impl Listener + 'static, Self) {
        let (sender, progress) = mpsc::unbounded_channel();
        (Answering(sender), Self { progress, over: false })
    }

    /// What comes next, on any executor; `None` behind the end.
    ///
    /// # Errors
    ///
    /// What [`Batcher::submit`](super::Batcher::submit) refuses, [`StepsFailed`](Error::StepsFailed),
    /// [`Stopped`](Error::Stopped), or what makes this request alone impossible to go on with. Nothing follows.
    pub async fn recv(&mut self) -> Option<Result<Progress>> {
        if self.over {
            return None;
        }
        let progress = self.progress.recv().await;
        Some(self.came(progress))
    }

    /// Notes whether that was the end; without any, whoever would have said it is gone.
    fn came(&mut self, progress: Option<Result<Progress>>) -> Result<Progress> {
        let progress = progress.unwrap_or(Err(Error::Stopped));
        self.over = !matches!(progress, Ok(Progress::Token(_)));
        progress
    }
}

/// # Panics
///
/// Within an asynchronous task of tokio, whose thread it would block.
impl Iterator for Answer {
    type Item = Result<Progress>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.over {
            return None;
        }
        let progress = self.progress.blocking_recv();
        Some(self.came(progress))
    }
}

impl Stream for Answer {
    type Item = Result<Progress>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.over {
            return Poll::Ready(None);
        }
        self.progress.poll_recv(context).map(|progress| Some(self.came(progress)))
    }
}

/// Sends what it hears; to nobody, once the answer is dropped.
struct Answering(UnboundedSender<Result<Progress>>);

impl Listener for Answering {
    fn is_wanted(&mut self) -> bool {
        !self.0.is_closed()
    }

    fn token(&mut self, _: usize, token: Token, _: u64) -> ControlFlow<()> {
        match self.0.send(Ok(Progress::Token(token))) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    }

    fn ended(&mut self, _: usize, ended: Ended) -> ControlFlow<()> {
        let _ = self.0.send(Ok(Progress::Ended(ended)));
        ControlFlow::Continue(())
    }

    fn failed(&mut self, error: Error) {
        let _ = self.0.send(Err(error));
    }
}

//! What comes of a request, for whoever waits for it.

use std::borrow::BorrowMut;
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
pub enum Piece {
    /// One more token.
    Token(Token),
    /// The end: nothing follows.
    Ended(Ended),
}

/// The answer to a request of a [`Worker`](super::Worker), as it comes: tokens, and then the end, or why there is none.
///
/// A `for` loop blocks its thread for it ([`blocking_recv`](Self::blocking_recv)); it is a [`Stream`] on any executor, whose
/// `next` is [`recv`](Self::recv). Tokens wait for whoever is slow. Dropping it cancels the request.
#[derive(Debug)]
pub struct Answer {
    pieces: UnboundedReceiver<Result<Piece>>,
    /// Whether its end has come.
    over: bool,
}

impl Answer {
    /// With who fills it.
    pub(super) fn new() -> (impl Listener + 'static, Self) {
        let (sender, pieces) = mpsc::unbounded_channel();
        (Answering(sender), Self { pieces, over: false })
    }

    /// What comes next, on any executor; `None` behind the end.
    ///
    /// # Errors
    ///
    /// What [`Batcher::submit`](super::Batcher::submit) refuses, [`StepsFailed`](Error::StepsFailed),
    /// [`Stopped`](Error::Stopped), or what makes this request alone impossible to go on with. Nothing follows.
    pub async fn recv(&mut self) -> Option<Result<Piece>> {
        if self.over {
            return None;
        }
        let piece = self.pieces.recv().await;
        Some(self.came(piece))
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
    pub fn blocking_recv(&mut self) -> Option<Result<Piece>> {
        if self.over {
            return None;
        }
        let piece = self.pieces.blocking_recv();
        Some(self.came(piece))
    }

    /// Notes whether that was the end; without any, whoever would have said it is gone.
    fn came(&mut self, piece: Option<Result<Piece>>) -> Result<Piece> {
        let piece = piece.unwrap_or(Err(Error::Stopped));
        self.over = !matches!(piece, Ok(Piece::Token(_)));
        piece
    }
}

/// What comes, one after the other, to whoever waits for it on a thread of their own.
///
/// # Panics
///
/// Its `next`, within an asynchronous task of tokio, whose thread it would block.
#[derive(Debug)]
pub struct Blocking<T>(T);

impl<T: BorrowMut<Answer>> Iterator for Blocking<T> {
    type Item = Result<Piece>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.borrow_mut().blocking_recv()
    }
}

impl IntoIterator for Answer {
    type Item = Result<Piece>;
    type IntoIter = Blocking<Self>;

    fn into_iter(self) -> Self::IntoIter {
        Blocking(self)
    }
}

impl IntoIterator for &mut Answer {
    type Item = Result<Piece>;
    type IntoIter = Blocking<Self>;

    fn into_iter(self) -> Self::IntoIter {
        Blocking(self)
    }
}

impl Stream for Answer {
    type Item = Result<Piece>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.over {
            return Poll::Ready(None);
        }
        self.pieces.poll_recv(context).map(|piece| Some(self.came(piece)))
    }
}

/// Sends what it hears; to nobody, once the answer is dropped.
struct Answering(UnboundedSender<Result<Piece>>);

impl Listener for Answering {
    fn is_wanted(&mut self) -> bool {
        !self.0.is_closed()
    }

    fn token(&mut self, _: usize, token: Token, _: u64) -> ControlFlow<()> {
        match self.0.send(Ok(Piece::Token(token))) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    }

    fn ended(&mut self, _: usize, ended: Ended) -> ControlFlow<()> {
        let _ = self.0.send(Ok(Piece::Ended(ended)));
        ControlFlow::Continue(())
    }

    fn failed(&mut self, error: Error) {
        let _ = self.0.send(Err(error));
    }
}

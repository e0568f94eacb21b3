//! The line of the log that every request gets when it is over.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Instant;

use axum::http::StatusCode;
use axum::response::Response;

use crate::keys::KeyId;

/// What nginx has in its log when a client goes away before its answer is whole.
const GONE: u16 = 499;

/// What a stream has come to. Its head, long since sent, says that all is well.
#[derive(Debug, Clone, Default)]
pub(crate) struct Outcome(Arc<AtomicU16>);

impl Outcome {
    /// It is over.
    pub fn set(&self, status: StatusCode) {
        self.0.store(status.as_u16(), Ordering::Relaxed);
    }
}

/// What the log says of a request. It is written when nobody holds it any more: behind the last byte of the answer, or
/// when its client is gone.
pub(crate) struct Line {
    pub id: String,
    key: Option<KeyId>,
    /// Method and path.
    what: String,
    start: Instant,
    outcome: Outcome,
    silent: bool,
}

impl Line {
    /// Of a request that begins now.
    pub fn new(id: String, key: Option<KeyId>, what: String) -> Self {
        let (start, outcome) = (Instant::now(), Outcome::default());
        Self { id, key, what, start, outcome, silent: false }
    }

    /// The request is answered by `response`, which has an [`Outcome`] where it is a stream.
    pub fn answered(&mut self, response: &mut Response) {
        match response.extensions_mut().remove::<Outcome>() {
            Some(outcome) => self.outcome = outcome,
            None => self.outcome.set(response.status()),
        }
    }

    /// Nothing is to be written.
    pub fn omit(&mut self) {
        self.silent = true;
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if self.silent {
            return;
        }
        let Self { id, key, what, .. } = self;
        let status = match self.outcome.0.load(Ordering::Relaxed) {
            0 if std::thread::panicking() => StatusCode::INTERNAL_SERVER_ERROR.as_u16(),
            0 => GONE,
            status => status,
        };
        let milliseconds = self.start.elapsed().as_millis();
        let key = key.map(tracing::field::display);
        tracing::info!(request = id, key, status, milliseconds, "{what}");
    }
}

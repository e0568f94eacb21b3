//! Asynchronous calls: started now, done when a fence is reached.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{self, Poll};
use std::time::Duration;

use crate::base::error::{Code, Error, Result};
use crate::calls::outputs::Outputs;
use crate::calls::session::Session;
use crate::hal::sync::fence::Fence;
use crate::hal::sync::reached::Reached;
use crate::hal::sync::timeline::Timeline;
use crate::vm::list::List;
use crate::vm::value::Value;

/// Calls the form of a function that takes two fences, which go to the end of `inputs`, and gives
/// the one that it will reach.
pub(crate) fn invoke(
    session: &mut Session,
    inputs: &mut List,
    outputs: &mut Outputs,
    after: Option<&Fence>,
) -> Result<Fence> {
    let arguments = outputs.function().arguments().len();
    let form = outputs.function().fenced().expect("only functions with such a form come here");
    let done = Timeline::new(session.device(), 0)?.fence(1)?;
    inputs.set_fence(arguments, after)?;
    inputs.set_fence(arguments + 1, Some(&done))?;
    session.invoke(form, inputs, outputs)?;
    Ok(done)
}

/// A call that was started: a future of its results, made by [`Session::call_async`].
///
/// Await it on any executor, or [`wait`](Self::wait) for it. Dropping it waits for nothing: the
/// work is done, and what it needs stays until then. A call that should not begin any more is
/// stopped by failing the fence that it waits for.
#[must_use = "the results are there when it is awaited"]
pub struct Pending {
    outputs: Option<Outputs>,
    reached: Reached,
}

impl Pending {
    /// Of a call that is done when `done` is reached.
    pub(crate) fn new(outputs: Outputs, done: &Fence) -> Self {
        Self { outputs: Some(outputs), reached: done.reached() }
    }

    /// Reached when the call is done, for others to wait for.
    pub fn fence(&self) -> &Fence {
        self.reached.fence()
    }

    /// Result `index` (counted from 0) before it is there, to be the argument of a call that waits
    /// for [`fence`](Self::fence). Reading it now is an error, or gives other bytes.
    ///
    /// # Errors
    /// [`OutOfRange`](Code::OutOfRange) when there is no such result.
    pub fn early(&self, index: usize) -> Result<Value> {
        self.outputs.as_ref().ok_or_else(taken)?.get(index)
    }

    /// Waits for the results; without a timeout, for as long as that takes.
    ///
    /// # Errors
    /// [`DeadlineExceeded`](Code::DeadlineExceeded) when the time is over: wait again;
    /// [`FailedPrecondition`](Code::FailedPrecondition) when they were taken before; what the
    /// call failed with.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<Outputs> {
        self.fence().wait(timeout).map_err(|error| self.explain(error))?;
        self.outputs.take().ok_or_else(taken)
    }

    fn explain(&self, error: Error) -> Error {
        match &self.outputs {
            Some(outputs) => error.context(format!("calling `{}`", outputs.function().name())),
            None => error,
        }
    }
}

fn taken() -> Error {
    Error::new(Code::FailedPrecondition, "the results of the call were taken")
}

impl Future for Pending {
    type Output = Result<Outputs>;

    fn poll(mut self: Pin<&mut Self>, context: &mut task::Context<'_>) -> Poll<Result<Outputs>> {
        Pin::new(&mut self.reached).poll(context).map(|reached| match reached {
            Ok(()) => self.outputs.take().ok_or_else(taken),
            Err(error) => Err(self.explain(error)),
        })
    }
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pending").field(self.fence()).finish()
    }
}

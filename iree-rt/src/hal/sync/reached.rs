//! Futures of fences: IREE calls back when a semaphore moves, and the callback wakes the task.

use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::base::error::Result;
use crate::hal::sync::fence::Fence;
use crate::hal::sync::timepoint::Timepoint;

/// A future of a [`Fence`] being reached, or of what it fails with.
///
/// It works on any executor. Polling does not wait, and while it is pending no thread does: IREE
/// wakes the task from the thread that does the work or signals. Dropping it waits for nothing and
/// changes nothing for the fence.
#[must_use = "futures do nothing unless polled"]
pub struct Reached {
    /// One for each semaphore of the fence, from the first poll on; dropped before it.
    timepoints: Option<Vec<Timepoint>>,
    fence: Fence,
    /// Whom to wake, once; shared with the callbacks.
    waker: Arc<Mutex<Option<Waker>>>,
}

impl Reached {
    pub(crate) fn new(fence: Fence) -> Self {
        Self { fence, waker: Arc::default(), timepoints: None }
    }

    /// The fence.
    pub fn fence(&self) -> &Fence {
        &self.fence
    }
}

impl Future for Reached {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let this = &mut *self;
        // Before asking IREE, so that what happens after the question finds whom to wake.
        let old = lock(&this.waker).replace(context.waker().clone());
        drop(old);
        if this.timepoints.is_none() {
            let wake = || {
                let waker = this.waker.clone();
                move || {
                    let waker = lock(&waker).take();
                    if let Some(waker) = waker {
                        waker.wake();
                    }
                }
            };
            // SAFETY: the timepoints are dropped before the fence is.
            this.timepoints = Some(unsafe { Timepoint::all(&this.fence, wake)? });
        }
        match this.fence.is_reached() {
            Ok(false) => Poll::Pending,
            Ok(true) => Poll::Ready(Ok(())),
            Err(failure) => Poll::Ready(Err(failure)),
        }
    }
}

impl Fence {
    /// A future of its being reached.
    pub fn reached(&self) -> Reached {
        Reached::new(self.clone())
    }
}

impl IntoFuture for Fence {
    type Output = Result<()>;
    type IntoFuture = Reached;

    fn into_future(self) -> Reached {
        Reached::new(self)
    }
}

impl IntoFuture for &Fence {
    type Output = Result<()>;
    type IntoFuture = Reached;

    fn into_future(self) -> Reached {
        self.reached()
    }
}

impl fmt::Debug for Reached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Reached").field(&self.fence).finish()
    }
}

fn lock(waker: &Mutex<Option<Waker>>) -> MutexGuard<'_, Option<Waker>> {
    waker.lock().unwrap_or_else(PoisonError::into_inner)
}

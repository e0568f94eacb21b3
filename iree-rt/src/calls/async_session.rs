//! Sessions on a thread of their own: whatever a call does, who awaits it does not wait.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::task::{Context, Poll, Waker};
use std::thread;

use crate::base::callback::discard;
use crate::base::canceller::Canceller;
use crate::base::error::{Code, Error, Result};
use crate::base::exit::Held;
use crate::calls::session::Session;
use crate::hal::devices::device::Device;

type Job = Box<dyn FnOnce(&mut Session) + Send>;

/// What all handles have in common.
struct Handles {
    jobs: mpsc::Sender<Job>,
    end: Arc<Mutex<Option<Held>>>,
}

impl Drop for Handles {
    /// From here on the thread comes to its end by itself.
    fn drop(&mut self) {
        *lock(&self.end) = Some(Held::new());
    }
}

/// A [`Session`] on a thread of its own, made by [`Session::into_async`]. Cloning gives another
/// handle to the same one; any thread may use it at any time.
///
/// What is [`run`](Self::run) is done one after the other. When the last handle is gone, the
/// thread does what is left that somebody still awaits, and ends; nobody waits for it.
#[derive(Clone)]
pub struct AsyncSession {
    handles: Arc<Handles>,
    canceller: Canceller,
    device: Device,
}

impl Session {
    /// Moves the session to a thread of its own, where any call may be awaited: of functions that
    /// wait for values on the host, on `local-sync`, and of those compiled for synchronous calls.
    /// ([`call_async`](Self::call_async) needs no thread, and keeps a device busy.)
    ///
    /// ```
    /// # #[cfg(all(feature = "link", feature = "compiler"))] fn main() -> iree_rt::Result<()> {
    /// # use iree_rt::{CompileOptions, Compiler, Instance, Module, Session};
    /// # let vmfb = Compiler::find()?.compile(
    /// #     "module @gate { func.func @double(%a: tensor<2xf32>) -> tensor<2xf32> {
    /// #        %sum = stablehlo.add %a, %a : tensor<2xf32>
    /// #        return %sum : tensor<2xf32> } }",
    /// #     &CompileOptions::default(),
    /// # )?;
    /// let device = Instance::get()?.device("local-sync")?;
    /// # // SAFETY: compiled just now for the CPU of this machine.
    /// # let module = unsafe { Module::from_bytes(&vmfb)? };
    /// let session = Session::builder(&device).module(module).build()?;
    /// let double = session.function("gate.double")?;
    /// let session = session.into_async()?;
    /// let a = device.buffer_view(&[2], &[1f32, 2.])?;
    /// let out = session.run(move |session| session.call(&double, [a]));
    /// let doubled = pollster::block_on(out)?.view(0)?.read::<f32>()?;
    /// assert_eq!(doubled, [2., 4.]);
    /// # Ok(()) }
    /// # #[cfg(not(all(feature = "link", feature = "compiler")))] fn main() {}
    /// ```
    ///
    /// # Errors
    /// [`ResourceExhausted`](Code::ResourceExhausted) when the system has no thread for it.
    pub fn into_async(self) -> Result<AsyncSession> {
        let (jobs, todo) = mpsc::channel::<Job>();
        let (canceller, device) = (self.canceller(), self.device().clone());
        let mut session = self;
        let end = Arc::default();
        let handles = Arc::new(Handles { jobs, end: Arc::clone(&end) });
        let work = move || {
            for job in todo {
                // Wakers, and results that nobody awaits any more, may panic when they are
                // dropped.
                let done = catch_unwind(AssertUnwindSafe(|| job(&mut session)));
                done.unwrap_or_else(discard);
            }
            drop(session);
            drop(end);
        };
        thread::Builder::new().name("iree-rt-session".into()).spawn(work).map_err(|error| {
            Error::new(Code::ResourceExhausted, format!("starting a session's thread: {error}"))
        })?;
        Ok(AsyncSession { handles, canceller, device })
    }
}

impl AsyncSession {
    /// Does `job` with the session on its thread, after what was asked before. It is not begun
    /// when the future is dropped before its turn.
    ///
    /// # Panics
    /// The future, with what `job` panics with; the session goes on.
    pub fn run<R: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Session) -> R + Send + 'static,
    ) -> Running<R> {
        let shared = Arc::new(Mutex::new(Shared::Asked(None)));
        let asked = Arc::downgrade(&shared);
        let job: Job = Box::new(move |session| {
            let Some(shared) = asked.upgrade() else { return };
            let result = catch_unwind(AssertUnwindSafe(|| job(session)));
            let before = std::mem::replace(&mut *lock(&shared), Shared::Done(result));
            if let Shared::Asked(Some(waker)) = before {
                waker.wake();
            }
        });
        self.handles.jobs.send(job).expect("the thread ends after its last handle");
        Running(shared)
    }

    /// What stops the calls of the session.
    pub fn canceller(&self) -> Canceller {
        self.canceller.clone()
    }

    /// The device that the session runs on, the first of several.
    pub fn device(&self) -> &Device {
        &self.device
    }
}

impl fmt::Debug for AsyncSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncSession").field("device", &self.device.uri()).finish()
    }
}

/// A future of what [`AsyncSession::run`] does.
#[must_use = "dropped before its turn, it is not begun"]
pub struct Running<R>(Arc<Mutex<Shared<R>>>);

enum Shared<R> {
    /// And whom to wake.
    Asked(Option<Waker>),
    Done(thread::Result<R>),
    Taken,
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<R> Future for Running<R> {
    type Output = R;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<R> {
        let waker = context.waker().clone();
        let mut shared = lock(&self.0);
        let before = match &*shared {
            Shared::Asked(_) => std::mem::replace(&mut *shared, Shared::Asked(Some(waker))),
            Shared::Done(_) | Shared::Taken => std::mem::replace(&mut *shared, Shared::Taken),
        };
        drop(shared);
        let panic: Box<dyn Any + Send> = match before {
            Shared::Asked(_) => return Poll::Pending,
            Shared::Done(Ok(result)) => return Poll::Ready(result),
            Shared::Done(Err(panic)) => panic,
            Shared::Taken => Box::new("polled after it was ready"),
        };
        resume_unwind(panic)
    }
}

impl<R> fmt::Debug for Running<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &*lock(&self.0) {
            Shared::Asked(_) => "Running(asked)",
            Shared::Done(_) => "Running(done)",
            Shared::Taken => "Running(taken)",
        })
    }
}

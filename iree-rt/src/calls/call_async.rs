//! Asynchronous calls: what starts them.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{self, Poll};
use std::time::Duration;

use crate::base::error::{Code, Error, Result};
use crate::calls::arguments::Arguments;
use crate::calls::call::Call;
use crate::calls::outputs::Outputs;
use crate::calls::pending::{Pending, invoke};
use crate::calls::results::Results;
use crate::calls::session::Session;
use crate::calls::typed_function::TypedFunction;
use crate::hal::cuda::Context;
use crate::hal::devices::device::Device;
use crate::hal::sync::fence::Fence;
use crate::hal::sync::timepoint::Timepoint;
use crate::vm::function::Function;

impl Session {
    /// Starts a call of `function`, which begins when `after` is reached, if it is given.
    ///
    /// The function was compiled with `--iree-execution-model=async-external`, or has a form
    /// `name$async` beside it, which is called then ([`Function::coarse_fences`]): it hands its work
    /// to the device and returns. So does this, with two exceptions. A function that needs values
    /// of tensors on the host (a loop until something converges, a
    /// [`NativeModule`](crate::NativeModule) that is passed them, a
    /// [`ParameterProvider`](crate::ParameterProvider) that they are written to, a
    /// [validator](crate::SessionBuilder::validate)) waits for them, and for `after` with them,
    /// before this returns. And `local-sync` works on the calling thread.
    /// [`into_async`](Self::into_async) awaits those.
    ///
    /// Calls of one session may be in flight at once. Those that use state of their module are
    /// done in the order in which they were started; where they fail, the state has failed too,
    /// and later calls that use it fail with the same error. Fences order the others, where one
    /// updates a tensor in place that another uses.
    ///
    /// ```
    /// # #[cfg(all(feature = "link", feature = "compiler"))] fn main() -> iree_rt::Result<()> {
    /// # use iree_rt::{CompileOptions, Compiler, Fence, Instance, Module, Session};
    /// # let vmfb = Compiler::find()?.compile(
    /// #     "module @gate { func.func @double(%a: tensor<2xf32>) -> tensor<2xf32> {
    /// #        %sum = stablehlo.add %a, %a : tensor<2xf32>
    /// #        return %sum : tensor<2xf32> } }",
    /// #     &CompileOptions::default().flag("--iree-execution-model=async-external"),
    /// # )?;
    /// # let device = Instance::get()?.device("local-task")?;
    /// # // SAFETY: compiled just now for the CPU of this machine.
    /// # let module = unsafe { Module::from_bytes(&vmfb)? };
    /// # let mut session = Session::builder(&device).module(module).build()?;
    /// let double = session.function("gate.double")?;
    /// let a = device.buffer_view(&[2], &[1f32, 2.])?;
    /// let (go, ready) = Fence::new(&device)?;
    /// let first = session.call_async(&double, [a], Some(&ready))?;
    /// // The second is in line on the device before the first has begun:
    /// let second = session.call_async(&double, [first.early(0)?], Some(first.fence()))?;
    /// go.signal()?;
    /// let out = pollster::block_on(second)?;
    /// assert_eq!(out.view(0)?.read::<f32>()?, [4., 8.]);
    /// # Ok(()) }
    /// # #[cfg(not(all(feature = "link", feature = "compiler")))] fn main() {}
    /// ```
    ///
    /// # Errors
    /// [`FailedPrecondition`](Code::FailedPrecondition) for a function that was compiled for
    /// synchronous calls only, and on `local-sync` for a fence that is not reached;
    /// [`InvalidArgument`](Code::InvalidArgument) for a fence of another device, and as
    /// [`call`](Self::call); what `after` has failed with. What goes wrong later, on the device,
    /// is an error of the [`Pending`].
    pub fn call_async(
        &mut self,
        function: &Function,
        arguments: impl Arguments,
        after: Option<&Fence>,
    ) -> Result<Pending> {
        let mut call = self.prepare(function)?;
        arguments.set(&mut call)?;
        call.invoke_async(self, after)
    }
}

impl Call {
    /// Starts the function in its session with the arguments as they are now: see
    /// [`Session::call_async`]. Results of other invocations stay.
    ///
    /// # Errors
    /// [`FailedPrecondition`](Code::FailedPrecondition) when an argument was never set, and as
    /// [`Session::call_async`].
    pub fn invoke_async(&self, session: &mut Session, after: Option<&Fence>) -> Result<Pending> {
        let function = self.function();
        if function.fenced().is_none() {
            return Err(Error::new(
                Code::FailedPrecondition,
                format!(
                    "`{}` was compiled for synchronous calls; compile it with \
                     --iree-execution-model=async-external",
                    function.name()
                ),
            ));
        }
        if let Some(after) = after {
            check_fence(function, session, after)?;
        }
        self.check_ready(session, after)?;
        let mut inputs = self.inputs()?;
        let mut outputs = Outputs::new(function.clone())?;
        let done = invoke(session, &mut inputs, &mut outputs, after)?;
        // Until the work is done it may use whatever the call was given, and data of the modules.
        // Tensors that came from elsewhere, native functions and parameters, it holds itself.
        let used = (inputs, session.shared_modules());
        let mut used = Some(used);
        let context = session.device().context();
        // SAFETY: detached.
        for timepoint in unsafe { Timepoint::all(&done, || drop_later(used.take(), context))? } {
            timepoint.detach();
        }
        Ok(Pending::new(outputs, &done))
    }
}

fn drop_later<T: Send>(value: T, context: Option<Context>) -> impl FnOnce() + Send {
    move || {
        // The thread is one of IREE's, of the device.
        context.iter().for_each(Context::enter);
        drop(value);
    }
}

fn check_fence(function: &Function, session: &Session, after: &Fence) -> Result<()> {
    if !after.device().same_group(session.device()) {
        return Err(Error::invalid(format!(
            "`{}` cannot wait for a fence of another device (`{}`, opened separately)",
            function.name(),
            after.device().uri()
        )));
    }
    let waits_here = |device: Device| device.uri().starts_with("local-sync");
    if session.device().group().devices().any(waits_here) && !after.is_reached()? {
        return Err(Error::new(
            Code::FailedPrecondition,
            "`local-sync` works on the calling thread, which would wait for the fence: wait for \
             it first, or use `local-task`",
        ));
    }
    Ok(())
}

/// A typed call that was started: a future of its results, made by [`TypedFunction::call_async`].
#[must_use = "the results are there when it is awaited"]
pub struct TypedPending<R> {
    pending: Pending,
    results: PhantomData<fn() -> R>,
}

impl<R: Results> TypedPending<R> {
    /// Reached when the call is done, for others to wait for.
    pub fn fence(&self) -> &Fence {
        self.pending.fence()
    }

    /// Waits for the results; without a timeout, for as long as that takes.
    ///
    /// # Errors
    /// As [`Pending::wait`].
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<R> {
        R::take(&self.pending.wait(timeout)?)
    }

    /// The call without its types.
    pub fn into_pending(self) -> Pending {
        self.pending
    }
}

impl<R: Results> Future for TypedPending<R> {
    type Output = Result<R>;

    fn poll(mut self: Pin<&mut Self>, context: &mut task::Context<'_>) -> Poll<Result<R>> {
        Pin::new(&mut self.pending).poll(context).map(|outputs| R::take(&outputs?))
    }
}

impl<R> fmt::Debug for TypedPending<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pending.fmt(f)
    }
}

impl<A: Arguments, R: Results> TypedFunction<A, R> {
    /// Starts a call, whose results have their types: see [`Session::call_async`].
    ///
    /// ```
    /// # #[cfg(all(feature = "link", feature = "compiler"))] fn main() -> iree_rt::Result<()> {
    /// # use iree_rt::{CompileOptions, Compiler, Instance, Module, Session, Tensor};
    /// let vmfb = Compiler::find()?.compile(
    ///     "module @gate {
    ///        func.func @double(%a: tensor<2xf32>) -> tensor<2xf32> {
    ///          %sum = stablehlo.add %a, %a : tensor<2xf32>
    ///          return %sum : tensor<2xf32>
    ///        }
    ///      }",
    ///     &CompileOptions::default().flag("--iree-execution-model=async-external"),
    /// )?;
    /// let device = Instance::get()?.device("local-task")?;
    /// // SAFETY: compiled just now for the CPU of this machine.
    /// let module = unsafe { Module::from_bytes(&vmfb)? };
    /// let mut session = Session::builder(&device).module(module).build()?;
    /// let double = session.typed::<(Tensor<f32>,), Tensor<f32>>("gate.double")?;
    /// let a = device.buffer_view(&[2], &[1f32, 2.])?.try_into()?;
    /// let pending = double.call_async(&mut session, (a,), None)?;
    /// let doubled: Tensor<f32> = pollster::block_on(pending)?; // or `.await`
    /// assert_eq!(doubled.read()?, [2., 4.]);
    /// # Ok(()) }
    /// # #[cfg(not(all(feature = "link", feature = "compiler")))] fn main() {}
    /// ```
    ///
    /// # Errors
    /// As [`Session::call_async`].
    pub fn call_async(
        &self,
        session: &mut Session,
        arguments: A,
        after: Option<&Fence>,
    ) -> Result<TypedPending<R>> {
        let mut call = session.prepare(self.function())?;
        arguments.set(&mut call)?;
        let pending = call.invoke_async(session, after)?;
        Ok(TypedPending { pending, results: PhantomData })
    }
}

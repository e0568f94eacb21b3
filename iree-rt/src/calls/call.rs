//! Calls: a function with its arguments and results, kept for any number of invocations.

use std::fmt;

use crate::base::error::{Code, Error, Result};
use crate::calls::arguments::Argument;
use crate::calls::outputs::Outputs;
use crate::calls::pending;
use crate::calls::session::Session;
use crate::hal::devices::device_group::EnterOnDrop;
use crate::hal::sync::fence::Fence;
use crate::vm::function::Function;
use crate::vm::list::List;
use crate::vm::signature::{ValueType, index_of};
use crate::vm::value::Value;

/// A function with its arguments, invoked as often as one likes.
///
/// Arguments stay until they are set again: a model's weights are set once, and only what
/// changes is set for each step. Setting and invoking allocate nothing that grows.
/// It may move between threads; it is invoked in the session that made it.
///
/// ```
/// # #[cfg(all(feature = "link", feature = "compiler"))] fn main() -> iree_rt::Result<()> {
/// # use iree_rt::{CompileOptions, Compiler, Instance, Module, Session};
/// # let vmfb = Compiler::find()?.compile(
/// #     "module @gate { func.func @add(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {
/// #        %sum = stablehlo.add %a, %b : tensor<4xf32>
/// #        return %sum : tensor<4xf32> } }",
/// #     &CompileOptions::default(),
/// # )?;
/// # let device = Instance::get()?.device("local-task")?;
/// # // SAFETY: compiled just now for the CPU of this machine.
/// # let module = unsafe { Module::from_bytes(&vmfb)? };
/// # let mut session = Session::builder(&device).module(module).build()?;
/// let mut call = session.prepare(&session.function("gate.add")?)?;
/// call.set(0, device.buffer_view(&[4], &[1f32; 4])?)?;
/// assert!(call.invoke(&mut session).is_err(), "argument 1 was not set");
/// assert!(call.set(1, 7).is_err(), "no tensor");
/// call.set(1, device.buffer_view(&[4], &[0f32; 4])?)?;
/// for _ in 0..3 {
///     call.invoke(&mut session)?;
///     call.set(1, call.outputs().get(0)?)?;
/// }
/// assert_eq!(call.outputs().view(0)?.read::<f32>()?, [3.; 4]);
/// # Ok(()) }
/// # #[cfg(not(all(feature = "link", feature = "compiler")))] fn main() {}
/// ```
pub struct Call {
    _enter: EnterOnDrop,
    /// The arguments, and room for two fences behind them when the function only has a form that
    /// takes those.
    inputs: List,
    /// Arguments that the program may change, to be passed anew each time.
    fresh: Vec<(usize, Value)>,
    /// Which arguments are set, and how many are not.
    set: Vec<bool>,
    missing: usize,
    /// Of the last invocation. Dropped last: it keeps the device, whose buffers the others hold.
    outputs: Outputs,
}

impl Call {
    pub(crate) fn new(function: Function) -> Result<Self> {
        let fences = if function.plain().is_none() { 2 } else { 0 };
        let count = function.arguments().len();
        Ok(Self {
            _enter: EnterOnDrop::new(function.device().group()),
            inputs: List::nulls(count + fences)?,
            fresh: Vec::new(),
            set: vec![false; count],
            missing: count,
            outputs: Outputs::new(function)?,
        })
    }

    /// The function that it calls.
    pub fn function(&self) -> &Function {
        self.outputs.function()
    }

    /// Sets argument `index` (counted from 0) for this and later invocations, to what
    /// [`Session::call`] takes as one.
    ///
    /// # Errors
    /// [`OutOfRange`](Code::OutOfRange) when there is no such argument;
    /// [`InvalidArgument`](Code::InvalidArgument) for a scalar where a tensor belongs and the
    /// like, a scalar of another type, or a tensor whose dtype or shape is not the declared one.
    pub fn set(&mut self, index: usize, value: impl Argument) -> Result<()> {
        let value = value.into_argument();
        self.check(index, &value)?;
        // What was set before may go, with its memory.
        self.outputs.device().group().enter();
        let fresh = match value {
            Value::BufferView(view) => {
                self.inputs.put(index, view)?;
                None
            }
            value => {
                self.inputs.set(index, &value)?;
                matches!(value, Value::List(_) | Value::Bytes(_)).then_some(value)
            }
        };
        if !std::mem::replace(&mut self.set[index], true) {
            self.missing -= 1;
        }
        self.fresh.retain(|(other, _)| *other != index);
        self.fresh.extend(fresh.map(|value| (index, value)));
        Ok(())
    }

    /// Sets the argument that the program calls `name` ([`Signature::argument_names`]).
    ///
    /// [`Signature::argument_names`]: crate::Signature::argument_names
    ///
    /// # Errors
    /// [`NotFound`](Code::NotFound) when no argument has this name, with those that there are; else as
    /// [`set`](Self::set).
    pub fn set_named(&mut self, name: &str, value: impl Argument) -> Result<()> {
        let signature = self.function().signature();
        let function = self.function().name();
        let index = index_of(&signature.argument_names, name, "argument", &function)?;
        self.set(index, value)
    }

    /// Takes argument `index` out, which is to be set again before the next invocation. A tensor of which
    /// this was the last other handle may be written in place then.
    ///
    /// # Errors
    /// [`OutOfRange`](Code::OutOfRange) when there is no such argument;
    /// [`FailedPrecondition`](Code::FailedPrecondition) when it is not set.
    pub fn take(&mut self, index: usize) -> Result<Value> {
        self.type_of(index)?;
        if !self.set[index] {
            return Err(self.not_set(index));
        }
        self.outputs.device().group().enter();
        let value = match self.fresh.iter().position(|(other, _)| *other == index) {
            // What is in the list may be as the program left it.
            Some(at) => self.fresh.swap_remove(at).1,
            None => self.inputs.get(index, self.outputs.device())?,
        };
        self.inputs.set(index, &Value::Null)?;
        self.set[index] = false;
        self.missing += 1;
        Ok(value)
    }

    /// Calls the function in its session and waits for the results, which replace the earlier
    /// ones.
    ///
    /// # Errors
    /// [`FailedPrecondition`](Code::FailedPrecondition) when an argument was never set;
    /// [`InvalidArgument`](Code::InvalidArgument) for another session, or arguments whose extents
    /// are not as the function says; what refuses the arguments
    /// ([`SessionBuilder::validate`](crate::SessionBuilder::validate)); what the function raises.
    pub fn invoke(&mut self, session: &mut Session) -> Result<()> {
        self.check_ready(session, None)?;
        // Results of the last invocation are given up first, so that their memory can be reused.
        self.outputs.clear()?;
        for (index, value) in &self.fresh {
            self.inputs.set(*index, value)?;
        }
        if let Some(plain) = self.function().plain() {
            return session.invoke(plain, &self.inputs, &mut self.outputs);
        }
        pending::invoke(session, &mut self.inputs, &mut self.outputs, None)?
            .wait(None)
            .map_err(|e| e.context(format!("calling `{}`", self.function().name())))
            .inspect_err(|_| drop(self.outputs.clear()))
    }

    /// Whether everything is there for an invocation in `session` that waits for `after`, and the
    /// function may be given it.
    pub(crate) fn check_ready(&self, session: &mut Session, after: Option<&Fence>) -> Result<()> {
        let function = self.function();
        session.check_owner(function)?;
        if self.missing > 0 {
            let first = self.set.iter().position(|set| !set).unwrap_or_default();
            return Err(self.not_set(first));
        }
        let validator = session.validator(function);
        if validator.is_none() && function.extents().is_empty() {
            return Ok(());
        }
        let mut values = self.inputs.first(function.arguments().len(), function.device())?;
        for (index, value) in &self.fresh {
            // What is in the list may be as the program left it.
            values[*index] = value.clone();
        }
        let shape_of = |index: usize| match values.get(index) {
            Some(Value::BufferView(view)) => Some(view.shape()),
            _ => None,
        };
        function
            .extents()
            .check(shape_of, |index| function.argument(index))
            .map_err(Error::invalid)
            .and_then(|()| {
                let Some(validator) = validator else { return Ok(()) };
                // It may look into tensors, which are there then.
                after.map_or(Ok(()), |after| after.wait(None))?;
                validator(&values)
            })
            .map_err(|e| e.context(format!("calling `{}`", function.name())))
    }

    /// Whether it takes so many arguments.
    pub(crate) fn check_count(&self, given: usize) -> Result<()> {
        let expected = self.function().arguments().len();
        if given == expected {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "`{}` takes {expected} arguments, not {given}",
            self.function().name()
        )))
    }

    /// The arguments for an invocation beside others, with room for two fences behind them.
    pub(crate) fn inputs(&self) -> Result<List> {
        let count = self.function().arguments().len();
        let mut inputs = self.inputs.copy(count, count + 2)?;
        for (index, value) in &self.fresh {
            inputs.set(*index, value)?;
        }
        Ok(inputs)
    }

    /// Results of the last invocation; none when nothing was invoked.
    pub fn outputs(&self) -> &Outputs {
        &self.outputs
    }

    /// Gives up the results of the last invocation, so that their memory is free again.
    ///
    /// # Errors
    /// None in practice.
    pub fn clear_outputs(&mut self) -> Result<()> {
        self.outputs.clear()
    }

    pub(crate) fn into_outputs(self) -> Outputs {
        self.outputs
    }

    fn not_set(&self, index: usize) -> Error {
        let function = self.function();
        let message = format!("{} of `{}` was not set", function.argument(index), function.name());
        Error::new(Code::FailedPrecondition, message)
    }

    /// The type of argument `index`, if there is one.
    fn type_of(&self, index: usize) -> Result<&ValueType> {
        self.function().arguments().get(index).ok_or_else(|| {
            Error::new(
                Code::OutOfRange,
                format!(
                    "`{}` has {} arguments, no argument {index}",
                    self.function().name(),
                    self.function().arguments().len()
                ),
            )
        })
    }

    fn check(&self, index: usize, value: &Value) -> Result<()> {
        let ty = self.type_of(index)?;
        // The list keeps buffers alive, but not the devices that their memory belongs to.
        let foreign = value.find_device(&|device| !device.same_group(self.outputs.device()));
        if let Some(device) = foreign {
            return Err(Error::invalid(format!(
                "{} of `{}` is in the memory of another device (`{}`, opened separately): copy it to \
                 this session's device",
                self.function().argument(index),
                self.function().name(),
                device.uri()
            )));
        }
        mismatch(ty, value).map_or(Ok(()), |what| {
            let function = self.function();
            let argument = function.argument(index);
            Err(Error::invalid(format!("{argument} of `{}`: {what}", function.name())))
        })
    }
}

impl Session {
    /// Makes a [`Call`] of `function`, to be invoked any number of times.
    ///
    /// # Errors
    /// [`InvalidArgument`](Code::InvalidArgument) when the function is of another session.
    pub fn prepare(&self, function: &Function) -> Result<Call> {
        self.check_owner(function)?;
        Call::new(function.clone())
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Call({:?}, {} arguments not set)", self.function(), self.missing)
    }
}

/// What is wrong with `value` as an argument of type `ty`.
fn mismatch(ty: &ValueType, value: &Value) -> Option<String> {
    let wrong = || Some(format!("{} where {ty} belongs", value.kind()));
    match (ty, value) {
        (ValueType::Scalar(wanted), _) => {
            if value.scalar() == Some(*wanted) {
                None
            } else {
                wrong()
            }
        }
        (_, value) if value.scalar().is_some() => wrong(),
        (ValueType::Tensor { shape, element_type }, Value::BufferView(view)) => {
            let fits = view.element_type() == *element_type
                && view.shape().len() == shape.len()
                && view
                    .shape()
                    .iter()
                    .zip(shape)
                    .all(|(&has, &wants)| wants.is_none_or(|wants| wants == has));
            (!fits).then(|| format!("a {view:?} where {ty} belongs"))
        }
        (ValueType::BufferView, Value::BufferView(_)) | (ValueType::Bytes, Value::Bytes(_)) => None,
        (ValueType::List(element), Value::List(values)) => {
            let element = element.as_ref()?;
            let wrong = |(at, value)| Some(format!("entry {at}: {}", mismatch(element, value)?));
            values.iter().enumerate().find_map(wrong)
        }
        // What a program is said to take as a reference is for it to look into.
        (ValueType::Reference(_), _) => None,
        _ => wrong(),
    }
}

//! Calls: a function with its arguments and results, kept for any number of invocations.

use std::fmt;

use crate::buffer_view::BufferView;
use crate::device::Device;
use crate::error::{Code, Error, Result};
use crate::function::Function;
use crate::list::List;
use crate::pending;
use crate::session::Session;
use crate::signature::{ScalarType, ValueType};
use crate::value::Value;

/// A function with its arguments, invoked as often as one likes.
///
/// Arguments stay until they are set again: a model's weights are set once, and only what
/// changes is set for each step. Setting and invoking allocate nothing that grows.
/// It may move between threads; it is invoked in the session that made it.
pub struct Call {
    function: Function,
    inputs: List,
    outputs: List,
    /// Which arguments have been set, and how many have not.
    set: Vec<bool>,
    missing: usize,
    /// Dropped last: lists hold buffers of the device.
    device: Device,
}

// SAFETY: VM lists are thread-compatible; what they hold (buffers, views) may be released on
// any thread.
unsafe impl Send for Call {}

impl Call {
    pub(crate) fn new(function: Function, device: Device) -> Result<Self> {
        let missing = function.arguments().len();
        let fences = if function.coarse_fences() { 2 } else { 0 };
        Ok(Self {
            inputs: List::nulls(missing + fences)?,
            outputs: List::with_capacity(function.results().len())?,
            set: vec![false; missing],
            missing,
            function,
            device,
        })
    }

    /// The function that it calls.
    pub fn function(&self) -> &Function {
        &self.function
    }

    /// Sets argument `index` (counted from 0) for this and later invocations.
    ///
    /// # Errors
    /// [`OutOfRange`](Code::OutOfRange) when there is no such argument;
    /// [`InvalidArgument`](Code::InvalidArgument) for a scalar where a tensor belongs and the
    /// like, a scalar of another type, or a tensor whose dtype or shape is not the declared one.
    pub fn set(&mut self, index: usize, value: impl Into<Value>) -> Result<()> {
        let value = value.into();
        self.check(index, &value)?;
        self.inputs.set(index, &value)?;
        self.mark(index);
        Ok(())
    }

    /// Calls the function in its session and waits for the results, which replace the earlier
    /// ones.
    ///
    /// # Errors
    /// [`FailedPrecondition`](Code::FailedPrecondition) when an argument was never set;
    /// [`InvalidArgument`](Code::InvalidArgument) for another session; what the function raises.
    pub fn invoke(&mut self, session: &mut Session) -> Result<()> {
        self.check_ready(session)?;
        // Results of the last invocation are given up first, so that their memory can be reused.
        self.outputs.clear()?;
        if !self.function.coarse_fences() {
            return session.invoke(&self.function, &self.inputs, &self.outputs);
        }
        pending::invoke(session, &self.function, &mut self.inputs, &self.outputs, None)?
            .wait(None)
            .map_err(|e| e.context(format!("calling `{}`", self.function.name())))
            .inspect_err(|_| drop(self.outputs.clear()))
    }

    /// Whether everything is there for an invocation in `session`.
    pub(crate) fn check_ready(&self, session: &Session) -> Result<()> {
        session.check_owner(&self.function)?;
        if let (1.., Some(index)) = (self.missing, self.set.iter().position(|set| !set)) {
            return Err(Error::new(
                Code::FailedPrecondition,
                format!("argument {index} of `{}` was not set", self.function.name()),
            ));
        }
        Ok(())
    }

    /// Sets every argument, in order.
    pub(crate) fn set_all(&mut self, arguments: impl IntoIterator<Item = Value>) -> Result<()> {
        let expected = self.function.arguments().len();
        let mut given = 0;
        for value in arguments {
            if given < expected {
                self.set(given, value)?;
            }
            given += 1;
        }
        if given != expected {
            return Err(Error::invalid(format!(
                "`{}` takes {expected} arguments, not {given}",
                self.function.name()
            )));
        }
        Ok(())
    }

    pub(crate) fn inputs(&self) -> &List {
        &self.inputs
    }

    /// Result `index` (counted from 0) of the last invocation.
    ///
    /// # Errors
    /// [`OutOfRange`](Code::OutOfRange) when there is no such result, or nothing was invoked.
    pub fn output(&self, index: usize) -> Result<Value> {
        output(&self.outputs, &self.function, &self.device, index)
    }

    /// Result `index` of the last invocation, a tensor.
    ///
    /// # Errors
    /// As [`output`](Self::output), and [`InvalidArgument`](Code::InvalidArgument) when it is no
    /// tensor.
    pub fn output_view(&self, index: usize) -> Result<BufferView> {
        self.output(index)?.into_buffer_view()
    }

    /// Gives up the results of the last invocation, so that their memory is free again.
    ///
    /// # Errors
    /// None in practice.
    pub fn clear_outputs(&mut self) -> Result<()> {
        self.outputs.clear()
    }

    pub(crate) fn into_outputs(self) -> Outputs {
        Outputs::new(self.outputs, &self.function, &self.device)
    }

    fn mark(&mut self, index: usize) {
        if !std::mem::replace(&mut self.set[index], true) {
            self.missing -= 1;
        }
    }

    fn check(&self, index: usize, value: &Value) -> Result<()> {
        let Some(ty) = self.function.arguments().get(index) else {
            return Err(Error::new(
                Code::OutOfRange,
                format!(
                    "`{}` has {} arguments, no argument {index}",
                    self.function.name(),
                    self.function.arguments().len()
                ),
            ));
        };
        // The list keeps buffers alive, but not the devices that their memory belongs to.
        let device = match value {
            Value::BufferView(view) => Some(view.device()),
            Value::Buffer(buffer) => Some(buffer.device()),
            _ => None,
        };
        if let Some(device) = device.filter(|device| !device.same_group(&self.device)) {
            return Err(Error::invalid(format!(
                "argument {index} of `{}` is in the memory of another device (`{}`, opened \
                 separately): copy it to this session's device",
                self.function.name(),
                device.uri()
            )));
        }
        mismatch(ty, value).map_or(Ok(()), |what| {
            Err(Error::invalid(format!("argument {index} of `{}`: {what}", self.function.name())))
        })
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Call({:?}, {} arguments not set)", self.function, self.missing)
    }
}

/// The results of one call.
pub struct Outputs {
    list: List,
    function: Function,
    device: Device,
}

// SAFETY: as for `Call`.
unsafe impl Send for Outputs {}

impl Outputs {
    pub(crate) fn new(list: List, function: &Function, device: &Device) -> Self {
        Self { list, function: function.clone(), device: device.clone() }
    }

    /// The function that was called.
    pub fn function(&self) -> &Function {
        &self.function
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Result `index`, counted from 0.
    ///
    /// # Errors
    /// [`OutOfRange`](Code::OutOfRange) when there is no such result.
    pub fn get(&self, index: usize) -> Result<Value> {
        output(&self.list, &self.function, &self.device, index)
    }

    /// Result `index`, a tensor.
    ///
    /// # Errors
    /// As [`get`](Self::get), and [`InvalidArgument`](Code::InvalidArgument) when it is no
    /// tensor.
    pub fn buffer_view(&self, index: usize) -> Result<BufferView> {
        self.get(index)?.into_buffer_view()
    }
}

impl fmt::Debug for Outputs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries((0..self.len()).map(|index| self.get(index))).finish()
    }
}

fn output(list: &List, function: &Function, device: &Device, index: usize) -> Result<Value> {
    if index >= list.len() {
        return Err(Error::new(
            Code::OutOfRange,
            format!(
                "`{}` has {} results and the last call left {}; no result {index}",
                function.name(),
                function.results().len(),
                list.len()
            ),
        ));
    }
    list.get(index, &function.results()[index], device)
}

/// What is wrong with `value` as an argument of type `ty`.
fn mismatch(ty: &ValueType, value: &Value) -> Option<String> {
    let scalar = match value {
        Value::I32(_) => Some(ScalarType::I32),
        Value::I64(_) => Some(ScalarType::I64),
        Value::F32(_) => Some(ScalarType::F32),
        Value::F64(_) => Some(ScalarType::F64),
        _ => None,
    };
    match (ty, value, scalar) {
        (ValueType::Scalar(wanted), _, Some(given)) if *wanted == given => None,
        (ValueType::Scalar(_), ..) | (_, _, Some(_)) => {
            Some(format!("{} where {ty} belongs", value.kind()))
        }
        (ValueType::Tensor { shape, element_type }, Value::BufferView(view), _) => {
            let fits = view.element_type() == *element_type
                && view.shape().len() == shape.len()
                && view
                    .shape()
                    .iter()
                    .zip(shape)
                    .all(|(&has, &wants)| wants.is_none_or(|wants| wants == has));
            (!fits).then(|| format!("a {view:?} where {ty} belongs"))
        }
        (ValueType::Tensor { .. } | ValueType::BufferView, Value::Buffer(_) | Value::Null, _) => {
            Some(format!("{} where {ty} belongs", value.kind()))
        }
        _ => None,
    }
}

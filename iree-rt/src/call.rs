//! Calls: a function with its arguments and results, kept for any number of invocations.

use std::fmt;
use std::ptr;

use iree_sys as sys;
use iree_sys::allocator::host_allocator;

use crate::buffer_view::BufferView;
use crate::device::Device;
use crate::error::{Code, Error, Result};
use crate::function::Function;
use crate::list::List;
use crate::session::Session;
use crate::signature::ValueType;
use crate::status::check;
use crate::value::Value;

/// A function with its arguments, invoked as often as one likes.
///
/// Arguments stay until they are set again: a model's weights are set once, and only what
/// changes is set for each step. Setting and invoking allocate nothing that grows.
/// It may move between threads; it is invoked in the session that made it.
pub struct Call {
    function: Function,
    inputs: List,
    results: Results,
    /// Arguments that the program may change, to be passed anew each time.
    fresh: Vec<(usize, Value)>,
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
        Ok(Self {
            inputs: List::nulls(missing)?,
            results: Results::new(&function)?,
            fresh: Vec::new(),
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
        self.fresh.retain(|(other, _)| *other != index);
        if matches!(value, Value::List(_) | Value::Bytes(_)) {
            self.fresh.push((index, value));
        }
        Ok(())
    }

    /// Calls the function in its session and waits for the results, which replace the earlier
    /// ones.
    ///
    /// # Errors
    /// [`FailedPrecondition`](Code::FailedPrecondition) when an argument was never set;
    /// [`InvalidArgument`](Code::InvalidArgument) for another session; what the function raises.
    pub fn invoke(&mut self, session: &mut Session) -> Result<()> {
        session.check_owner(&self.function)?;
        if let (1.., Some(index)) = (self.missing, self.set.iter().position(|set| !set)) {
            return Err(Error::new(
                Code::FailedPrecondition,
                format!("argument {index} of `{}` was not set", self.function.name()),
            ));
        }
        // Results of the last invocation are given up first, so that their memory can be reused.
        self.results.clear()?;
        for (index, value) in &self.fresh {
            self.inputs.set(*index, value)?;
        }
        // SAFETY: the context is live and exclusively ours for the call; function and lists
        // belong to it.
        check(unsafe {
            sys::iree_vm_invoke(
                session.context(),
                self.function.raw(),
                sys::IREE_VM_INVOCATION_FLAG_NONE,
                ptr::null(),
                self.inputs.raw(),
                self.results.list.raw(),
                host_allocator(),
            )
        })
        .and_then(|()| self.results.copy(&self.function, &self.device))
        .map_err(|e| e.context(format!("calling `{}`", self.function.name())))
    }

    /// Result `index` (counted from 0) of the last invocation.
    ///
    /// # Errors
    /// [`OutOfRange`](Code::OutOfRange) when there is no such result, or nothing was invoked.
    pub fn output(&self, index: usize) -> Result<Value> {
        self.results.get(index, &self.function, &self.device)
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
        self.results.clear()
    }

    pub(crate) fn into_outputs(self) -> Outputs {
        Outputs { results: self.results, function: self.function, device: self.device }
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
        // The list keeps buffers alive, but not the device that their memory belongs to.
        let foreign = value.find_device(&|device| device.raw() != self.device.raw());
        if let Some(device) = foreign {
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
    results: Results,
    function: Function,
    device: Device,
}

// SAFETY: as for `Call`.
unsafe impl Send for Outputs {}

impl Outputs {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.results.list.len()
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
        self.results.get(index, &self.function, &self.device)
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

/// The results of the last invocation.
struct Results {
    list: List,
    /// Those that the program may still hold and change, copied before it could: lists and bytes.
    copies: Vec<(usize, Value)>,
}

impl Results {
    fn new(function: &Function) -> Result<Self> {
        Ok(Self { list: List::with_capacity(function.results().len())?, copies: Vec::new() })
    }

    fn clear(&mut self) -> Result<()> {
        self.copies.clear();
        self.list.clear()
    }

    /// Copies what has to be, while no other call of the session runs.
    fn copy(&mut self, function: &Function, device: &Device) -> Result<()> {
        for (index, ty) in function.results().iter().enumerate() {
            if matches!(ty, ValueType::List(_) | ValueType::Bytes | ValueType::Reference(_)) {
                self.copies.push((index, self.list.get(index, device)?));
            }
        }
        Ok(())
    }

    fn get(&self, index: usize, function: &Function, device: &Device) -> Result<Value> {
        if index >= self.list.len() {
            return Err(Error::new(
                Code::OutOfRange,
                format!(
                    "`{}` has {} results and the last call left {}; no result {index}",
                    function.name(),
                    function.results().len(),
                    self.list.len()
                ),
            ));
        }
        match self.copies.iter().find(|(copied, _)| *copied == index) {
            Some((_, value)) => Ok(value.clone()),
            None => self.list.get(index, device),
        }
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

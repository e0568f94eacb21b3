//! Outputs: the results of a call.

use std::fmt;

use crate::base::error::{Code, Error, Result};
use crate::hal::devices::device::Device;
use crate::hal::devices::device_group::EnterOnDrop;
use crate::hal::memory::buffer_view::BufferView;
use crate::vm::function::Function;
use crate::vm::list::List;
use crate::vm::signature::{ValueType, index_of};
use crate::vm::value::Value;

/// The results of one call.
pub struct Outputs {
    _enter: EnterOnDrop,
    list: List,
    /// Those that the program may still hold and change, copied before it could: lists and bytes.
    copies: Vec<(usize, Value)>,
    /// Dropped last: it keeps the device, whose buffers the list holds.
    function: Function,
}

impl Outputs {
    /// None yet, with room for those of `function`.
    pub(crate) fn new(function: Function) -> Result<Self> {
        let list = List::with_capacity(function.results().len())?;
        let enter = EnterOnDrop::new(function.device().group());
        Ok(Self { _enter: enter, list, copies: Vec::new(), function })
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
        if index >= self.len() {
            return Err(Error::new(
                Code::OutOfRange,
                format!(
                    "`{}` has {} results and the last call left {}; no result {index}",
                    self.function.name(),
                    self.function.results().len(),
                    self.len()
                ),
            ));
        }
        match self.copies.iter().find(|(copied, _)| *copied == index) {
            Some((_, value)) => Ok(value.clone()),
            None => self.list.get(index, self.device()),
        }
    }

    /// Result `index`, a tensor.
    ///
    /// # Errors
    /// As [`get`](Self::get), and [`InvalidArgument`](Code::InvalidArgument) when it is no
    /// tensor; the message names the result.
    pub fn view(&self, index: usize) -> Result<BufferView> {
        self.get(index)?.into_buffer_view().map_err(|error| self.name(index, error))
    }

    /// The result that the program calls `name` ([`Signature::result_names`]).
    ///
    /// [`Signature::result_names`]: crate::Signature::result_names
    ///
    /// # Errors
    /// [`NotFound`](Code::NotFound) when no result has this name, with those that there are; else as
    /// [`get`](Self::get).
    pub fn get_named(&self, name: &str) -> Result<Value> {
        self.get(self.named(name)?)
    }

    /// The same of a tensor.
    ///
    /// # Errors
    /// As [`get_named`](Self::get_named) and [`view`](Self::view).
    pub fn view_named(&self, name: &str) -> Result<BufferView> {
        self.view(self.named(name)?)
    }

    fn named(&self, name: &str) -> Result<usize> {
        let signature = self.function.signature();
        index_of(&signature.result_names, name, "result", &self.function.name())
    }

    /// `error` of result `index`, saying so.
    pub(crate) fn name(&self, index: usize, error: Error) -> Error {
        error.context(format!("result {index} of `{}`", self.function.name()))
    }

    pub(crate) fn device(&self) -> &Device {
        self.function.device()
    }

    pub(crate) fn list(&self) -> &List {
        &self.list
    }

    pub(crate) fn clear(&mut self) -> Result<()> {
        self.device().group().enter();
        self.copies.clear();
        self.list.clear()
    }

    /// Copies what has to be, before another call of the session runs.
    pub(crate) fn copy_shared(&mut self) -> Result<()> {
        for (index, ty) in self.function.results().iter().enumerate() {
            if matches!(ty, ValueType::List(_) | ValueType::Bytes | ValueType::Reference(_)) {
                self.copies.push((index, self.list.get(index, self.function.device())?));
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Outputs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries((0..self.len()).map(|index| self.get(index))).finish()
    }
}

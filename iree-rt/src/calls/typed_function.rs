//! Functions whose types were checked once, when they were looked up.

use std::fmt;
use std::marker::PhantomData;

use crate::base::error::Result;
use crate::calls::arguments::Arguments;
use crate::calls::results::Results;
use crate::calls::session::Session;
use crate::vm::function::Function;

/// A function whose argument and result types were checked when it was looked up by
/// [`Session::typed`]; shapes are checked by each call.
pub struct TypedFunction<A, R> {
    function: Function,
    types: PhantomData<fn(A) -> R>,
}

impl<A: Arguments, R: Results> TypedFunction<A, R> {
    fn new(function: Function) -> Result<Self> {
        let check = || {
            A::check(function.arguments())?;
            R::check(function.results())
        };
        check().map_err(|e| e.context(format!("`{function:?}`")))?;
        Ok(Self { function, types: PhantomData })
    }

    /// Calls the function and waits for its results.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::Code::InvalidArgument) for a tensor of another shape than the
    /// declared one; as [`Call::invoke`](crate::Call::invoke) and [`Results::take`].
    pub fn call(&self, session: &mut Session, arguments: A) -> Result<R> {
        let mut call = session.prepare(&self.function)?;
        arguments.set(&mut call)?;
        call.invoke(session)?;
        R::take(&call.into_outputs())
    }

    /// The function without its types.
    pub fn function(&self) -> &Function {
        &self.function
    }
}

impl<A, R> Clone for TypedFunction<A, R> {
    fn clone(&self) -> Self {
        Self { function: self.function.clone(), types: PhantomData }
    }
}

impl<A, R> fmt::Debug for TypedFunction<A, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.function.fmt(f)
    }
}

impl Session {
    /// The function of full name `module.function`, taking `A` and returning `R`.
    ///
    /// Where the module does not say what a reference is to (the functions of ONNX and PyTorch
    /// programs do not), any type that is passed so will do; the program checks arguments, and the
    /// call its results.
    ///
    /// # Errors
    /// As [`function`](Self::function), and [`InvalidArgument`](crate::Code::InvalidArgument)
    /// when the module declares other types.
    pub fn typed<A: Arguments, R: Results>(&self, name: &str) -> Result<TypedFunction<A, R>> {
        TypedFunction::new(self.function(name)?)
    }
}

//! Functions whose types were checked once, when they were looked up.

use std::fmt;
use std::marker::PhantomData;

use crate::base::error::{Error, Result};
use crate::calls::call::Call;
use crate::calls::outputs::Outputs;
use crate::calls::session::Session;
use crate::vm::function::Function;
use crate::vm::signature::ValueType;
use crate::vm::typed::Typed;
use crate::vm::value::Value;

/// The arguments of a [`TypedFunction`] or of a function of a
/// [`NativeModule`](crate::NativeModule): a tuple of up to eight.
pub trait Parameters: Sized {
    #[doc(hidden)]
    fn declared() -> Vec<ValueType>;
    #[doc(hidden)]
    fn check(types: &[ValueType]) -> Result<()>;
    #[doc(hidden)]
    fn set(self, call: &mut Call) -> Result<()>;
    /// From as many values as are declared.
    #[doc(hidden)]
    fn from_values(values: Vec<Value>) -> Result<Self>;
}

/// The results of a [`TypedFunction`] or of a function of a
/// [`NativeModule`](crate::NativeModule): one, or a tuple of up to eight.
pub trait Results: Sized {
    #[doc(hidden)]
    fn declared() -> Vec<ValueType>;
    #[doc(hidden)]
    fn check(types: &[ValueType]) -> Result<()>;
    #[doc(hidden)]
    fn take(outputs: &Outputs) -> Result<Self>;
    #[doc(hidden)]
    fn into_values(self) -> Vec<Value>;
}

fn check_count(types: &[ValueType], count: usize, what: &str) -> Result<()> {
    if types.len() == count {
        return Ok(());
    }
    Err(Error::invalid(format!("{} {what}, not {count}", types.len())))
}

impl<T: Typed> Results for T {
    fn declared() -> Vec<ValueType> {
        vec![T::declared()]
    }

    fn check(types: &[ValueType]) -> Result<()> {
        check_count(types, 1, "results")?;
        T::check(&types[0]).map_err(|e| e.context("result 0"))
    }

    fn take(outputs: &Outputs) -> Result<Self> {
        T::from_value(outputs.get(0)?)
    }

    fn into_values(self) -> Vec<Value> {
        vec![self.into_value()]
    }
}

macro_rules! tuples {
    ($(($($name:ident $index:tt),*);)*) => {$(
        impl<$($name: Typed),*> Parameters for ($($name,)*) {
            fn declared() -> Vec<ValueType> {
                vec![$($name::declared()),*]
            }

            fn check(types: &[ValueType]) -> Result<()> {
                check_count(types, <[usize]>::len(&[$($index),*]), "arguments")?;
                $($name::check(&types[$index])
                    .map_err(|e| e.context(concat!("argument ", $index)))?;)*
                Ok(())
            }

            fn set(self, _call: &mut Call) -> Result<()> {
                $(_call.set($index, self.$index.into_value())?;)*
                Ok(())
            }

            fn from_values(values: Vec<Value>) -> Result<Self> {
                let mut _values = values.into_iter();
                Ok(($($name::from_value(_values.next().unwrap_or(Value::Null))
                    .map_err(|e| e.context(concat!("argument ", $index)))?,)*))
            }
        }

        impl<$($name: Typed),*> Results for ($($name,)*) {
            fn declared() -> Vec<ValueType> {
                vec![$($name::declared()),*]
            }

            fn check(types: &[ValueType]) -> Result<()> {
                check_count(types, <[usize]>::len(&[$($index),*]), "results")?;
                $($name::check(&types[$index])
                    .map_err(|e| e.context(concat!("result ", $index)))?;)*
                Ok(())
            }

            fn take(_outputs: &Outputs) -> Result<Self> {
                Ok(($($name::from_value(_outputs.get($index)?)?,)*))
            }

            fn into_values(self) -> Vec<Value> {
                vec![$(self.$index.into_value()),*]
            }
        }
    )*};
}

tuples! {
    ();
    (A 0);
    (A 0, B 1);
    (A 0, B 1, C 2);
    (A 0, B 1, C 2, D 3);
    (A 0, B 1, C 2, D 3, E 4);
    (A 0, B 1, C 2, D 3, E 4, F 5);
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6);
    (A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7);
}

/// A function whose argument and result types were checked when it was looked up by
/// [`Session::typed`]; shapes are checked by each call.
pub struct TypedFunction<P, R> {
    function: Function,
    types: PhantomData<fn(P) -> R>,
}

impl<P: Parameters, R: Results> TypedFunction<P, R> {
    fn new(function: Function) -> Result<Self> {
        let check = || {
            P::check(function.arguments())?;
            R::check(function.results())
        };
        check().map_err(|e| e.context(format!("`{function:?}`")))?;
        Ok(Self { function, types: PhantomData })
    }

    /// Calls the function and waits for its results.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::Code::InvalidArgument) for a tensor of another shape than the
    /// declared one, or another session; what the function raises.
    pub fn call(&self, session: &mut Session, arguments: P) -> Result<R> {
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

impl<P, R> Clone for TypedFunction<P, R> {
    fn clone(&self) -> Self {
        Self { function: self.function.clone(), types: PhantomData }
    }
}

impl<P, R> fmt::Debug for TypedFunction<P, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.function.fmt(f)
    }
}

impl Session {
    /// The function of full name `module.function`, taking `P` (a tuple) and returning `R`.
    ///
    /// # Errors
    /// As [`function`](Self::function), and [`InvalidArgument`](crate::Code::InvalidArgument)
    /// when the module declares other types.
    pub fn typed<P: Parameters, R: Results>(&self, name: &str) -> Result<TypedFunction<P, R>> {
        TypedFunction::new(self.function(name)?)
    }
}

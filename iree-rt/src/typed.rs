//! Functions whose types were checked once, when they were looked up.

use std::fmt;
use std::marker::PhantomData;

use crate::buffer_view::BufferView;
use crate::call::{Call, Outputs};
use crate::element::{Element, ElementType};
use crate::error::{Error, Result};
use crate::function::Function;
use crate::session::Session;
use crate::signature::{ScalarType, ValueType};
use crate::value::Value;

/// A buffer view whose elements are `T`, in the signature of a [`TypedFunction`].
#[derive(Clone, Debug)]
pub struct Tensor<T> {
    view: BufferView,
    elements: PhantomData<T>,
}

impl<T: Element> Tensor<T> {
    /// The buffer view.
    pub fn view(&self) -> &BufferView {
        &self.view
    }

    /// The buffer view.
    pub fn into_view(self) -> BufferView {
        self.view
    }

    /// All elements, in row-major order.
    ///
    /// # Errors
    /// Transfer errors of the device.
    pub fn read(&self) -> Result<Vec<T>> {
        self.view.read()
    }
}

impl<T: Element> TryFrom<BufferView> for Tensor<T> {
    type Error = Error;

    fn try_from(view: BufferView) -> Result<Self> {
        if !T::reads(view.element_type()) {
            return Err(Error::invalid(format!("{view:?} is no tensor of {}", T::TYPE)));
        }
        Ok(Self { view, elements: PhantomData })
    }
}

/// A Rust type that stands for one argument or result.
pub trait Typed: Sized {
    /// What is wrong when a function declares `ty` here, if anything.
    #[doc(hidden)]
    fn check(ty: &ValueType) -> Result<()>;
    #[doc(hidden)]
    fn into_value(self) -> Value;
    #[doc(hidden)]
    fn from_value(value: Value) -> Result<Self>;
}

fn wrong(ty: &ValueType, rust: impl fmt::Display) -> Error {
    Error::invalid(format!("{ty} is not {rust}"))
}

impl<T: Element> Typed for Tensor<T> {
    fn check(ty: &ValueType) -> Result<()> {
        let declared: Option<ElementType> = match ty {
            ValueType::Tensor { element_type, .. } => Some(*element_type),
            // What a buffer view holds shows when it is there.
            ValueType::BufferView => return Ok(()),
            _ => None,
        };
        match declared {
            Some(declared) if T::reads(declared) => Ok(()),
            _ => Err(wrong(ty, format_args!("a tensor of {}", T::TYPE))),
        }
    }

    fn into_value(self) -> Value {
        self.view.into()
    }

    fn from_value(value: Value) -> Result<Self> {
        value.into_buffer_view()?.try_into()
    }
}

impl Typed for BufferView {
    fn check(ty: &ValueType) -> Result<()> {
        match ty {
            ValueType::Tensor { .. } | ValueType::BufferView => Ok(()),
            _ => Err(wrong(ty, "a tensor")),
        }
    }

    fn into_value(self) -> Value {
        self.into()
    }

    fn from_value(value: Value) -> Result<Self> {
        value.into_buffer_view()
    }
}

macro_rules! scalars {
    ($($rust:ty: $variant:ident;)*) => {$(
        impl Typed for $rust {
            fn check(ty: &ValueType) -> Result<()> {
                match ty {
                    ValueType::Scalar(ScalarType::$variant) => Ok(()),
                    _ => Err(wrong(ty, ScalarType::$variant)),
                }
            }

            fn into_value(self) -> Value {
                self.into()
            }

            fn from_value(value: Value) -> Result<Self> {
                match value {
                    Value::$variant(value) => Ok(value),
                    other => Err(other.mismatch(ScalarType::$variant)),
                }
            }
        }
    )*};
}

scalars! {
    i32: I32;
    i64: I64;
    f32: F32;
    f64: F64;
}

/// The arguments of a [`TypedFunction`]: a tuple of up to eight.
pub trait Parameters {
    #[doc(hidden)]
    fn check(types: &[ValueType]) -> Result<()>;
    #[doc(hidden)]
    fn set(self, call: &mut Call) -> Result<()>;
}

/// The results of a [`TypedFunction`]: one, or a tuple of up to eight.
pub trait Results: Sized {
    #[doc(hidden)]
    fn check(types: &[ValueType]) -> Result<()>;
    #[doc(hidden)]
    fn take(outputs: &Outputs) -> Result<Self>;
}

fn check_count(types: &[ValueType], count: usize, what: &str) -> Result<()> {
    if types.len() == count {
        return Ok(());
    }
    Err(Error::invalid(format!("{} {what}, not {count}", types.len())))
}

impl<T: Typed> Results for T {
    fn check(types: &[ValueType]) -> Result<()> {
        check_count(types, 1, "results")?;
        T::check(&types[0]).map_err(|e| e.context("result 0"))
    }

    fn take(outputs: &Outputs) -> Result<Self> {
        T::from_value(outputs.get(0)?)
    }
}

macro_rules! tuples {
    ($(($($name:ident $index:tt),*);)*) => {$(
        impl<$($name: Typed),*> Parameters for ($($name,)*) {
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
        }

        impl<$($name: Typed),*> Results for ($($name,)*) {
            fn check(types: &[ValueType]) -> Result<()> {
                check_count(types, <[usize]>::len(&[$($index),*]), "results")?;
                $($name::check(&types[$index])
                    .map_err(|e| e.context(concat!("result ", $index)))?;)*
                Ok(())
            }

            fn take(_outputs: &Outputs) -> Result<Self> {
                Ok(($($name::from_value(_outputs.get($index)?)?,)*))
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

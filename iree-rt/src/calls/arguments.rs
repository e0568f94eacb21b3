//! Arguments of calls: values of one type or of several, checked when a function is looked up.

use crate::base::error::{Error, Result};
use crate::calls::call::Call;
use crate::calls::outputs::Outputs;
use crate::calls::session::Session;
use crate::hal::memory::buffer::Buffer;
use crate::hal::memory::buffer_view::BufferView;
use crate::hal::memory::element::Element;
use crate::vm::function::Function;
use crate::vm::reference::Reference;
use crate::vm::signature::ValueType;
use crate::vm::tuples::for_tuples;
use crate::vm::typed::{Tensor, Typed};
use crate::vm::value::Value;

/// One argument of a call: what is [`Typed`], and what need not be given away to be passed
/// (`&BufferView`, `&Tensor<T>`, `&Value`, `&str`).
pub trait Argument {
    /// What is wrong when a function declares `ty` here, if anything.
    #[doc(hidden)]
    fn fits(ty: &ValueType) -> Result<()>;
    #[doc(hidden)]
    fn into_argument(self) -> Value;
}

impl<T: Typed> Argument for T {
    fn fits(ty: &ValueType) -> Result<()> {
        T::check(ty)
    }

    fn into_argument(self) -> Value {
        self.into_value()
    }
}

macro_rules! borrowed {
    ($($ty:ty: $like:ty;)*) => {$(
        impl Argument for $ty {
            fn fits(ty: &ValueType) -> Result<()> {
                <$like as Typed>::check(ty)
            }

            fn into_argument(self) -> Value {
                self.to_owned().into()
            }
        }
    )*};
}

borrowed! {
    &BufferView: BufferView;
    &Reference: Reference;
    &Value: Value;
    // Of which a program says no more than that they are references.
    Buffer: Value;
    &Buffer: Value;
}

impl Argument for &str {
    fn fits(ty: &ValueType) -> Result<()> {
        String::check(ty)
    }

    fn into_argument(self) -> Value {
        self.into()
    }
}

impl<T: Element> Argument for &Tensor<T> {
    fn fits(ty: &ValueType) -> Result<()> {
        Tensor::<T>::check(ty)
    }

    fn into_argument(self) -> Value {
        self.view().into()
    }
}

/// All arguments of a call: an array, slice or `Vec` of one type of [`Argument`], a tuple of up to
/// sixteen, or a struct of yours.
///
/// A function of many arguments has names for them in a struct, which passes its fields on, here as
/// a tuple:
///
/// ```
/// # #[cfg(all(feature = "link", feature = "compiler"))] fn main() -> iree_rt::Result<()> {
/// use iree_rt::{Arguments, Call, Result, Tensor, ValueType};
/// # use iree_rt::{CompileOptions, Compiler, Instance, Module, Session};
///
/// struct Scale {
///     values: Tensor<f32>,
///     by: Tensor<f32>,
/// }
///
/// impl Arguments for Scale {
///     fn check(types: &[ValueType]) -> Result<()> {
///         <(Tensor<f32>, Tensor<f32>)>::check(types)
///     }
///
///     fn set(self, call: &mut Call) -> Result<()> {
///         (self.values, self.by).set(call)
///     }
/// }
///
/// # let vmfb = Compiler::find()?.compile(
/// #     "module @gate { func.func @scale(%a: tensor<2xf32>, %b: tensor<2xf32>) -> tensor<2xf32> {
/// #        %0 = stablehlo.multiply %a, %b : tensor<2xf32>
/// #        return %0 : tensor<2xf32> } }",
/// #     &CompileOptions::default(),
/// # )?;
/// # let device = Instance::get()?.device("local-task")?;
/// # // SAFETY: compiled just now for the CPU of this machine.
/// # let module = unsafe { Module::from_bytes(&vmfb)? };
/// # let mut session = Session::builder(&device).module(module).build()?;
/// let scale = session.typed::<Scale, Tensor<f32>>("gate.scale")?;
/// let tensor = |data: &[f32]| device.buffer_view(&[2], data)?.try_into();
/// let arguments = Scale { values: tensor(&[1., 2.])?, by: tensor(&[10., 100.])? };
/// assert_eq!(scale.call(&mut session, arguments)?.read()?, [10., 200.]);
/// # Ok(()) }
/// # #[cfg(not(all(feature = "link", feature = "compiler")))] fn main() {}
/// ```
///
/// More than sixteen are set one by one ([`Call::set`]); one that is not set is an error of the call.
pub trait Arguments: Sized {
    /// Whether a function that declares arguments of `types` may be called with these.
    ///
    /// # Errors
    /// What does not fit: its message is that of [`Session::typed`](crate::Session::typed).
    fn check(types: &[ValueType]) -> Result<()>;

    /// Sets every argument of `call`.
    ///
    /// # Errors
    /// As [`Call::set`].
    fn set(self, call: &mut Call) -> Result<()>;
}

impl Session {
    /// Calls `function` with `arguments` and waits for its results.
    ///
    /// Arguments are an array, slice or `Vec` of one type (`[&a, &b]`), or a tuple of several
    /// (`(&a, 3)`, `()`): see [`Arguments`]. What compiled code does with them is part of what who
    /// loaded the module vouches for ([`Module::from_bytes`](crate::Module::from_bytes)).
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::Code::InvalidArgument) for arguments of the wrong number, kind, dtype
    /// or shape, which the message names; and as [`Call::invoke`].
    pub fn call(&mut self, function: &Function, arguments: impl Arguments) -> Result<Outputs> {
        let mut call = self.prepare(function)?;
        arguments.set(&mut call)?;
        call.invoke(self)?;
        Ok(call.into_outputs())
    }
}

/// Whether `types` are so many.
pub(crate) fn check_count(types: &[ValueType], count: usize, what: &str) -> Result<()> {
    if types.len() == count {
        return Ok(());
    }
    Err(Error::invalid(format!("{} {what}, not {count}", types.len())))
}

/// Whether each of `types` is that of an argument of type `T`.
fn check_all<T: Argument>(types: &[ValueType]) -> Result<()> {
    types
        .iter()
        .enumerate()
        .try_for_each(|(at, ty)| T::fits(ty).map_err(|e| e.context(format!("argument {at}"))))
}

fn set_all<T: Argument>(
    arguments: impl ExactSizeIterator<Item = T>,
    call: &mut Call,
) -> Result<()> {
    call.check_count(arguments.len())?;
    arguments.enumerate().try_for_each(|(at, argument)| call.set(at, argument))
}

impl<T: Argument> Arguments for Vec<T> {
    fn check(types: &[ValueType]) -> Result<()> {
        check_all::<T>(types)
    }

    fn set(self, call: &mut Call) -> Result<()> {
        set_all(self.into_iter(), call)
    }
}

impl<T: Argument + Clone> Arguments for &[T] {
    fn check(types: &[ValueType]) -> Result<()> {
        check_all::<T>(types)
    }

    fn set(self, call: &mut Call) -> Result<()> {
        set_all(self.iter().cloned(), call)
    }
}

impl<T: Argument, const N: usize> Arguments for [T; N] {
    fn check(types: &[ValueType]) -> Result<()> {
        check_count(types, N, "arguments")?;
        check_all::<T>(types)
    }

    fn set(self, call: &mut Call) -> Result<()> {
        set_all(self.into_iter(), call)
    }
}

impl<T: Argument + Clone, const N: usize> Arguments for &[T; N] {
    fn check(types: &[ValueType]) -> Result<()> {
        <[T; N]>::check(types)
    }

    fn set(self, call: &mut Call) -> Result<()> {
        self[..].set(call)
    }
}

macro_rules! arguments {
    ($($name:ident $index:tt),*) => {
        impl<$($name: Argument),*> Arguments for ($($name,)*) {
            fn check(types: &[ValueType]) -> Result<()> {
                check_count(types, <[usize]>::len(&[$($index),*]), "arguments")?;
                $($name::fits(&types[$index])
                    .map_err(|e| e.context(concat!("argument ", $index)))?;)*
                Ok(())
            }

            fn set(self, call: &mut Call) -> Result<()> {
                call.check_count(<[usize]>::len(&[$($index),*]))?;
                $(call.set($index, self.$index)?;)*
                Ok(())
            }
        }
    };
}

for_tuples!(arguments);

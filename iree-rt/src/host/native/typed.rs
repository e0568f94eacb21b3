//! What Rust functions of native modules take and return.

use crate::base::error::Result;
use crate::vm::signature::ValueType;
use crate::vm::tuples::for_tuples;
use crate::vm::typed::Typed;
use crate::vm::value::Value;

/// The arguments of a function of a [`NativeModule`](crate::NativeModule): a tuple of up to sixteen
/// that are [`Typed`].
pub trait FromArguments: Sized {
    #[doc(hidden)]
    fn declared() -> Vec<ValueType>;
    /// From as many values as are declared.
    #[doc(hidden)]
    fn from_values(values: Vec<Value>) -> Result<Self>;
}

/// The results of a function of a [`NativeModule`](crate::NativeModule): one that is [`Typed`], or a
/// tuple of up to sixteen.
pub trait IntoResults {
    #[doc(hidden)]
    fn declared() -> Vec<ValueType>;
    #[doc(hidden)]
    fn into_values(self) -> Vec<Value>;
}

impl<T: Typed> IntoResults for T {
    fn declared() -> Vec<ValueType> {
        vec![T::declared()]
    }

    fn into_values(self) -> Vec<Value> {
        vec![self.into_value()]
    }
}

macro_rules! tuple {
    ($($name:ident $index:tt),*) => {
        impl<$($name: Typed),*> FromArguments for ($($name,)*) {
            fn declared() -> Vec<ValueType> {
                vec![$($name::declared()),*]
            }

            fn from_values(values: Vec<Value>) -> Result<Self> {
                let mut _values = values.into_iter();
                Ok(($($name::from_value(_values.next().unwrap_or(Value::Null))
                    .map_err(|e| e.context(concat!("argument ", $index)))?,)*))
            }
        }

        impl<$($name: Typed),*> IntoResults for ($($name,)*) {
            fn declared() -> Vec<ValueType> {
                vec![$($name::declared()),*]
            }

            fn into_values(self) -> Vec<Value> {
                vec![$(self.$index.into_value()),*]
            }
        }
    };
}

for_tuples!(tuple);

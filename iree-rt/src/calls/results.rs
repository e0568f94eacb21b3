//! Results of calls as Rust types.

use crate::base::error::Result;
use crate::calls::arguments::check_count;
use crate::calls::outputs::Outputs;
use crate::vm::signature::ValueType;
use crate::vm::tuples::for_tuples;
use crate::vm::typed::Typed;

/// All results of a call: one that is [`Typed`], an array of such, a tuple of up to sixteen, or a
/// struct of yours that is made of those, as [`Arguments`](crate::Arguments) are.
pub trait Results: Sized {
    /// Whether a function that declares results of `types` may leave these.
    ///
    /// # Errors
    /// What does not fit: its message is that of [`Session::typed`](crate::Session::typed).
    fn check(types: &[ValueType]) -> Result<()>;

    /// The results of a call.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::Code::InvalidArgument) for a result of another type, where the
    /// program did not say it; the message names the result.
    fn take(outputs: &Outputs) -> Result<Self>;
}

fn check_one<T: Typed>(types: &[ValueType], index: usize) -> Result<()> {
    T::check(&types[index]).map_err(|e| e.context(format!("result {index}")))
}

fn take_one<T: Typed>(outputs: &Outputs, index: usize) -> Result<T> {
    T::from_value(outputs.get(index)?).map_err(|error| outputs.name(index, error))
}

impl<T: Typed> Results for T {
    fn check(types: &[ValueType]) -> Result<()> {
        check_count(types, 1, "results")?;
        check_one::<T>(types, 0)
    }

    fn take(outputs: &Outputs) -> Result<Self> {
        take_one(outputs, 0)
    }
}

impl<T: Typed, const N: usize> Results for [T; N] {
    fn check(types: &[ValueType]) -> Result<()> {
        check_count(types, N, "results")?;
        (0..N).try_for_each(|index| check_one::<T>(types, index))
    }

    fn take(outputs: &Outputs) -> Result<Self> {
        let results = (0..N).map(|index| take_one(outputs, index)).collect::<Result<Vec<T>>>()?;
        Ok(results.try_into().unwrap_or_else(|_| unreachable!("as many as were taken")))
    }
}

macro_rules! results {
    ($($name:ident $index:tt),*) => {
        impl<$($name: Typed),*> Results for ($($name,)*) {
            fn check(types: &[ValueType]) -> Result<()> {
                check_count(types, <[usize]>::len(&[$($index),*]), "results")?;
                $(check_one::<$name>(types, $index)?;)*
                Ok(())
            }

            fn take(_outputs: &Outputs) -> Result<Self> {
                Ok(($(take_one::<$name>(_outputs, $index)?,)*))
            }
        }
    };
}

for_tuples!(results);

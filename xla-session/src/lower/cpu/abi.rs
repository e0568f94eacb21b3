//! What a kernel is called with, said once: the graph writes the call from it, and the kernel reads
//! its arguments by it.

use crate::emit::builder::{Builder, Call, Index, Value};

/// Declares the arguments of a kernel: memory that it reads, memory that it updates, and numbers.
///
/// The struct has two uses. Of `&Value` and `Index` it is a call that a graph makes; of pointers to
/// bytes and `usize` it is what one work item of that call is given.
macro_rules! kernel_abi {
    (
        $(#[$doc:meta])*
        $name:ident {
            reads { $($(#[$read_doc:meta])* $read:ident,)* }
            updates { $($(#[$update_doc:meta])* $update:ident,)* }
            numbers { $($(#[$number_doc:meta])* $number:ident,)* }
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(super) struct $name<T, N> {
            $($(#[$read_doc])* pub $read: T,)*
            $($(#[$update_doc])* pub $update: T,)*
            $($(#[$number_doc])* pub $number: N,)*
        }

        impl $name<&$crate::emit::builder::Value, $crate::emit::builder::Index> {
            /// Writes the call; returns what it updates, as it is then.
            pub(super) fn call(
                self,
                b: &mut $crate::emit::builder::Builder,
                symbol: &str,
                items: &$crate::emit::builder::Index,
            ) -> Vec<$crate::emit::builder::Value> {
                $crate::lower::cpu::abi::call(
                    b,
                    symbol,
                    &[$(self.$read),*],
                    &[$(self.$update),*],
                    &[$(self.$number),*],
                    items,
                )
            }
        }

        #[cfg(feature = "iree")]
        impl $name<*mut u8, usize> {
            /// The kernel that does `run` for each work item, given its number.
            ///
            /// Memory is bytes: a pointer is where the graph's value begins.
            pub(super) fn kernel(
                run: impl Fn(usize, Self) + Send + Sync + 'static,
            ) -> iree_rt::Kernel {
                const TENSORS: usize = [$(stringify!($read),)* $(stringify!($update),)*].len();
                const NUMBERS: usize = [$(stringify!($number),)*].len();
                iree_rt::Kernel::new(TENSORS, NUMBERS, move |arguments| {
                    let (mut tensors, mut numbers) = (0.., arguments.constants().iter());
                    let mut tensor = || arguments.pointer::<u8>(tensors.next().expect("endless"));
                    let mut number = || *numbers.next().expect("as many as declared") as usize;
                    // In the order of the call: fields are evaluated as they are written.
                    let this = Self {
                        $($read: tensor(),)*
                        $($update: tensor(),)*
                        $($number: number(),)*
                    };
                    let [item, ..] = arguments.workgroup_id();
                    run(item as usize, this);
                    Ok(())
                })
            }
        }
    };
}

pub(super) use kernel_abi;

/// A call, whichever the kernel.
pub(super) fn call(
    b: &mut Builder,
    symbol: &str,
    reads: &[&Value],
    updates: &[&Value],
    numbers: &[Index],
    items: &Index,
) -> Vec<Value> {
    b.call(&Call { symbol, reads, updates, numbers, items })
}

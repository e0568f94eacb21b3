//! Arguments and results of calls, of compiled functions and of native ones.

use std::fmt;

use crate::base::error::{Error, Result};
use crate::hal::devices::device::Device;
use crate::hal::memory::buffer::Buffer;
use crate::hal::memory::buffer_view::BufferView;
use crate::vm::reference::Reference;
use crate::vm::signature::ScalarType;

/// An argument or result: a tensor, a scalar, a list, bytes, a reference, or nothing.
///
/// Lists and bytes are passed by value: what the other side does with its own changes nothing
/// here. Integers narrower than 32 bits, and truth values, are passed as 32-bit ones.
///
/// ```
/// # #[cfg(all(feature = "link", feature = "compiler"))] fn main() -> iree_rt::Result<()> {
/// # use iree_rt::{CompileOptions, Compiler, Instance, Module, Session, Value};
/// let vmfb = Compiler::find()?.compile(
///     "module @program {
///        func.func @first(%list: !util.list<?>) -> (i32, !util.list<?>) {
///          %at = arith.constant 0 : index
///          %first = util.list.get %list[%at] : !util.list<?> -> i32
///          return %first, %list : i32, !util.list<?>
///        }
///      }",
///     &CompileOptions::default(),
/// )?;
/// let device = Instance::get()?.device("local-task")?;
/// // SAFETY: compiled just now for the CPU of this machine.
/// let program = unsafe { Module::from_bytes(&vmfb)? };
/// let mut session = Session::builder(&device).module(program).build()?;
/// let first = session.function("program.first")?;
/// let list = vec![Value::from(7), Value::from("text"), vec![Value::from(0.5f64)].into()];
/// let out = session.call(&first, (list,))?;
/// assert!(matches!(out.get(0)?, Value::I32(7)));
/// let Value::List(same) = out.get(1)? else { panic!("no list") };
/// assert!(matches!(&same[1], Value::Bytes(text) if text == b"text"));
///
/// // Lists of one type are `Vec`s of it.
/// let first = session.typed::<(Vec<i32>,), (i32, Vec<i32>)>("program.first")?;
/// assert_eq!(first.call(&mut session, (vec![1, 2],))?, (1, vec![1, 2]));
/// # Ok(()) }
/// # #[cfg(not(all(feature = "link", feature = "compiler")))] fn main() {}
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Value {
    /// A tensor.
    BufferView(BufferView),
    /// Bytes without a shape.
    Buffer(Buffer),
    /// 32-bit integer.
    I32(i32),
    /// 64-bit integer.
    I64(i64),
    /// 32-bit float.
    F32(f32),
    /// 64-bit float.
    F64(f64),
    /// Values of any type (`!util.list`), lists among them, at most 64 deep.
    List(Vec<Value>),
    /// Bytes of the host (`!util.buffer`): text, for example.
    Bytes(Vec<u8>),
    /// Something that is only passed on.
    Reference(Reference),
    /// A null reference.
    Null,
}

impl Value {
    /// The tensor.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::Code::InvalidArgument) when it is something else.
    pub fn into_buffer_view(self) -> Result<BufferView> {
        match self {
            Self::BufferView(view) => Ok(view),
            other => Err(other.mismatch("a tensor")),
        }
    }

    /// What it is, for messages.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::BufferView(_) => "a tensor",
            Self::Buffer(_) => "a buffer",
            Self::I32(_) => "an i32",
            Self::I64(_) => "an i64",
            Self::F32(_) => "an f32",
            Self::F64(_) => "an f64",
            Self::List(_) => "a list",
            Self::Bytes(_) => "bytes",
            Self::Reference(_) => "an opaque reference",
            Self::Null => "a null reference",
        }
    }

    pub(crate) fn scalar(&self) -> Option<ScalarType> {
        match self {
            Self::I32(_) => Some(ScalarType::I32),
            Self::I64(_) => Some(ScalarType::I64),
            Self::F32(_) => Some(ScalarType::F32),
            Self::F64(_) => Some(ScalarType::F64),
            _ => None,
        }
    }

    /// The first device of a buffer in it that `is` so.
    pub(crate) fn find_device(&self, is: &dyn Fn(&Device) -> bool) -> Option<&Device> {
        let device = match self {
            Self::BufferView(view) => Some(view.device()),
            Self::Buffer(buffer) => Some(buffer.device()),
            Self::Reference(reference) => reference.device(),
            Self::List(values) => return values.iter().find_map(|value| value.find_device(is)),
            _ => None,
        };
        device.filter(|device| is(device))
    }

    pub(crate) fn mismatch(&self, wanted: impl fmt::Display) -> Error {
        Error::invalid(format!("{} where {wanted} belongs", self.kind()))
    }
}

macro_rules! from {
    ($($ty:ty => $variant:ident;)*) => {$(
        impl From<$ty> for Value {
            fn from(value: $ty) -> Self {
                Self::$variant(value)
            }
        }
    )*};
}

from! {
    BufferView => BufferView;
    Buffer => Buffer;
    Reference => Reference;
    Vec<Value> => List;
    Vec<u8> => Bytes;
    i32 => I32;
    i64 => I64;
    f32 => F32;
    f64 => F64;
}

impl From<&BufferView> for Value {
    fn from(view: &BufferView) -> Self {
        Self::BufferView(view.clone())
    }
}

impl From<&Buffer> for Value {
    fn from(buffer: &Buffer) -> Self {
        Self::Buffer(buffer.clone())
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Bytes(text.into())
    }
}

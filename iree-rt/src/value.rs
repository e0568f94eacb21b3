//! Arguments and results of calls.

use std::fmt;

use crate::buffer::Buffer;
use crate::buffer_view::BufferView;
use crate::error::{Error, Result};

/// An argument or result: a tensor, a scalar, or nothing.
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
    /// A null reference, or one of a type that this crate has no name for.
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
            Self::Null => "a null reference",
        }
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

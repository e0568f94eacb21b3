//! Rust types that stand for arguments and results.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;

use crate::base::error::{Error, Result};
use crate::hal::devices::device::Device;
use crate::hal::memory::buffer_view::BufferView;
use crate::hal::memory::element::{Element, ElementType};
use crate::vm::reference::Reference;
use crate::vm::signature::{ScalarType, ValueType};
use crate::vm::value::Value;

/// A buffer view whose elements are `T`, in the signature of a [`TypedFunction`](crate::TypedFunction).
#[derive(Clone, Debug)]
pub struct Tensor<T> {
    view: BufferView,
    elements: PhantomData<T>,
}

impl<T: Element> Tensor<T> {
    /// A tensor of `shape` in memory of `device`, with a copy of `data`, its elements in row-major order.
    ///
    /// # Errors
    /// As [`BufferView::new`].
    pub fn new(device: &Device, shape: &[usize], data: &[T]) -> Result<Self> {
        BufferView::new(device, shape, data)?.try_into()
    }

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

    /// Replaces the elements from the `start`-th on by `data`.
    ///
    /// # Errors
    /// As [`BufferView::write`].
    pub fn write(&mut self, start: usize, data: &[T]) -> Result<()> {
        self.view.write(start, data)
    }
}

impl<T> Deref for Tensor<T> {
    type Target = BufferView;

    fn deref(&self) -> &BufferView {
        &self.view
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

/// A Rust type that stands for one argument or result: a [`Tensor`] or [`BufferView`], a scalar
/// (`i32 i64 f32 f64`), a `Vec` of such for a list, `Vec<u8>` or `String` for bytes, a
/// [`Reference`], or any [`Value`] but a scalar.
pub trait Typed: Sized {
    /// What a native function that takes or returns this declares.
    #[doc(hidden)]
    fn declared() -> ValueType;
    /// What a list of this declares its entries to be, if not anything.
    #[doc(hidden)]
    fn declared_entry() -> Option<ValueType> {
        Some(Self::declared())
    }
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
    fn declared() -> ValueType {
        ValueType::BufferView
    }

    fn check(ty: &ValueType) -> Result<()> {
        let declared: Option<ElementType> = match ty {
            ValueType::Tensor { element_type, .. } => Some(*element_type),
            // What a buffer view holds, or a reference is to, shows when it is there.
            ValueType::BufferView | ValueType::Reference(None) => return Ok(()),
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
    fn declared() -> ValueType {
        ValueType::BufferView
    }

    fn check(ty: &ValueType) -> Result<()> {
        match ty {
            ValueType::Tensor { .. } | ValueType::BufferView | ValueType::Reference(None) => Ok(()),
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
            fn declared() -> ValueType {
                ValueType::Scalar(ScalarType::$variant)
            }

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

impl<T: Typed> Typed for Vec<T> {
    fn declared() -> ValueType {
        ValueType::List(T::declared_entry().map(Box::new))
    }

    fn check(ty: &ValueType) -> Result<()> {
        match ty {
            ValueType::List(None) | ValueType::Reference(None) => Ok(()),
            ValueType::List(Some(element)) => T::check(element).map_err(|e| e.context("entries")),
            _ => Err(wrong(ty, "a list")),
        }
    }

    fn into_value(self) -> Value {
        Value::List(self.into_iter().map(T::into_value).collect())
    }

    fn from_value(value: Value) -> Result<Self> {
        match value {
            Value::List(values) => values
                .into_iter()
                .enumerate()
                .map(|(at, value)| {
                    T::from_value(value).map_err(|e| e.context(format!("entry {at}")))
                })
                .collect(),
            other => Err(other.mismatch("a list")),
        }
    }
}

impl Typed for Vec<u8> {
    fn declared() -> ValueType {
        ValueType::Bytes
    }

    fn check(ty: &ValueType) -> Result<()> {
        match ty {
            ValueType::Bytes | ValueType::Reference(None) => Ok(()),
            _ => Err(wrong(ty, "bytes")),
        }
    }

    fn into_value(self) -> Value {
        Value::Bytes(self)
    }

    fn from_value(value: Value) -> Result<Self> {
        match value {
            Value::Bytes(bytes) => Ok(bytes),
            other => Err(other.mismatch("bytes")),
        }
    }
}

/// Bytes that are UTF-8.
impl Typed for String {
    fn declared() -> ValueType {
        ValueType::Bytes
    }

    fn check(ty: &ValueType) -> Result<()> {
        <Vec<u8>>::check(ty)
    }

    fn into_value(self) -> Value {
        Value::Bytes(self.into())
    }

    fn from_value(value: Value) -> Result<Self> {
        let bytes = <Vec<u8>>::from_value(value)?;
        Self::from_utf8(bytes).map_err(|e| Error::invalid(format!("bytes where text belongs: {e}")))
    }
}

impl Typed for Reference {
    fn declared() -> ValueType {
        ValueType::Reference(Some("!util.object".into()))
    }

    fn check(ty: &ValueType) -> Result<()> {
        match ty {
            ValueType::Reference(_) => Ok(()),
            _ => Err(wrong(ty, "an opaque reference")),
        }
    }

    fn into_value(self) -> Value {
        self.into()
    }

    fn from_value(value: Value) -> Result<Self> {
        match value {
            Value::Reference(reference) => Ok(reference),
            other => Err(other.mismatch("an opaque reference")),
        }
    }
}

/// Anything. A native function that declares it takes or returns what is passed by reference, null
/// included; a `Vec` of it is a list of anything.
impl Typed for Value {
    fn declared() -> ValueType {
        ValueType::Reference(Some("!util.object".into()))
    }

    fn declared_entry() -> Option<ValueType> {
        None
    }

    fn check(_ty: &ValueType) -> Result<()> {
        Ok(())
    }

    fn into_value(self) -> Value {
        self
    }

    fn from_value(value: Value) -> Result<Self> {
        Ok(value)
    }
}

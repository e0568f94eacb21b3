//! Arguments and results of native functions in the VM's memory.

use std::mem::{align_of, size_of};

use iree_sys as sys;

use crate::base::error::{Code, Error, Result};
use crate::hal::devices::device::Device;
use crate::hal::sync::fence::Fence;
use crate::vm::reference::RawReference;
use crate::vm::signature::{ScalarType, ValueType};
use crate::vm::value::Value;

/// Arguments or results as the VM lays them out: one behind the other, each aligned.
pub(super) struct Slots {
    next: *mut u8,
    end: usize,
}

impl Slots {
    pub(super) fn new(span: sys::iree_byte_span_t) -> Self {
        Self { next: span.data, end: span.data as usize + span.data_length }
    }

    /// The place of the next value, which is a `T`.
    fn place<T>(&mut self) -> Result<*mut T> {
        // The VM does not align 32-bit values, and has no need to.
        let padding = self.next.align_offset(align_of::<T>());
        let place = self.next.wrapping_add(padding);
        self.next = place.wrapping_add(size_of::<T>());
        if self.next as usize > self.end {
            return Err(Error::new(Code::Internal, "the VM passes fewer values than declared"));
        }
        Ok(place.cast())
    }

    /// # Safety
    /// The next value is live, of type `ty`, and of `device`.
    pub(super) unsafe fn read(&mut self, ty: &ValueType, device: &Device) -> Result<Value> {
        // SAFETY: by the contract of this function; places are inside and aligned. The caller
        // keeps its count of a reference, and waits for us before it uses a list or bytes.
        unsafe {
            Ok(match ty {
                ValueType::Scalar(ScalarType::I32) => Value::I32(*self.place()?),
                ValueType::Scalar(ScalarType::I64) => Value::I64(*self.place()?),
                ValueType::Scalar(ScalarType::F32) => Value::F32(*self.place()?),
                ValueType::Scalar(ScalarType::F64) => Value::F64(*self.place()?),
                _ => RawReference::retain(&*self.place()?).into_value(device)?,
            })
        }
    }

    /// A fence, or `None` for one that is reached already.
    ///
    /// # Safety
    /// The next value is a reference, live and of `device`.
    pub(super) unsafe fn read_fence(&mut self, device: &Device) -> Result<Option<Fence>> {
        // SAFETY: by the contract of this function; the type says whether it is a fence.
        unsafe {
            let raw = *self.place::<sys::iree_vm_ref_t>()?;
            if raw.ptr.is_null() {
                return Ok(None);
            }
            if raw.type_ != sys::iree_hal_fence_registration {
                return Err(Error::invalid("another reference where a fence belongs"));
            }
            Ok(Some(Fence::retain(raw.ptr.cast(), device)))
        }
    }

    /// # Safety
    /// The next place is for a value of this kind, and holds no reference yet.
    pub(super) unsafe fn write(
        &mut self,
        value: &Value,
        reference: Option<RawReference>,
    ) -> Result<()> {
        // SAFETY: by the contract of this function; places are inside and aligned.
        unsafe {
            match (value, reference) {
                (Value::I32(value), _) => *self.place()? = *value,
                (Value::I64(value), _) => *self.place()? = *value,
                (Value::F32(value), _) => *self.place()? = *value,
                (Value::F64(value), _) => *self.place()? = *value,
                (_, reference) => {
                    let place = self.place::<sys::iree_vm_ref_t>()?;
                    *place = reference.map_or(sys::iree_vm_ref_null(), RawReference::into_raw);
                }
            }
        }
        Ok(())
    }
}

//! VM lists: how arguments go in and results come out.

use std::ptr::{self, NonNull};

use iree_sys as sys;
use iree_sys::allocator::host_allocator;

use crate::buffer::Buffer;
use crate::buffer_view::BufferView;
use crate::device::Device;
use crate::error::Result;
use crate::fence::Fence;
use crate::signature::{ScalarType, ValueType};
use crate::status::check;
use crate::value::Value;

/// A list of values of any type, as long as the function has arguments or results.
pub(crate) struct List(NonNull<sys::iree_vm_list_t>);

// SAFETY: VM lists are thread-compatible; what they hold (buffers, views, fences) may be released
// on any thread.
unsafe impl Send for List {}

impl List {
    /// An empty list with room for `capacity` values.
    pub(crate) fn with_capacity(capacity: usize) -> Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: plain creation into a valid out pointer.
        check(unsafe {
            sys::iree_vm_list_create(
                sys::iree_vm_make_undefined_type_def(),
                capacity,
                host_allocator(),
                &mut raw,
            )
        })?;
        Ok(Self(NonNull::new(raw).expect("IREE returned OK with a null list")))
    }

    /// A list of `length` nulls.
    pub(crate) fn nulls(length: usize) -> Result<Self> {
        let list = Self::with_capacity(length)?;
        // SAFETY: the list is live.
        check(unsafe { sys::iree_vm_list_resize(list.raw(), length) })?;
        Ok(list)
    }

    pub(crate) fn raw(&self) -> *mut sys::iree_vm_list_t {
        self.0.as_ptr()
    }

    pub(crate) fn len(&self) -> usize {
        // SAFETY: the list is live.
        unsafe { sys::iree_vm_list_size(self.raw()) }
    }

    /// Releases what is in it, keeping the storage.
    pub(crate) fn clear(&mut self) -> Result<()> {
        // SAFETY: the list is live; shrinking releases the entries.
        check(unsafe { sys::iree_vm_list_resize(self.raw(), 0) })
    }

    /// Replaces entry `index`; the list holds its own reference.
    pub(crate) fn set(&mut self, index: usize, value: &Value) -> Result<()> {
        let scalar = match value {
            Value::BufferView(view) => return self.set_buffer_view(index, view),
            Value::Buffer(buffer) => {
                // SAFETY: list and buffer are live; IREE checks the index.
                return check(unsafe {
                    sys::iree_vm_list_set_buffer_retain(self.raw(), index, buffer.raw())
                });
            }
            Value::Null => {
                let null = sys::iree_vm_ref_null();
                // SAFETY: the list is live; a null reference owns nothing.
                return check(unsafe {
                    sys::iree_vm_list_set_ref_retain(self.raw(), index, &null)
                });
            }
            Value::I32(value) => sys::iree_vm_value_make_i32(*value),
            Value::I64(value) => sys::iree_vm_value_make_i64(*value),
            Value::F32(value) => sys::iree_vm_value_make_f32(*value),
            Value::F64(value) => sys::iree_vm_value_make_f64(*value),
        };
        // SAFETY: the list is live; IREE checks the index.
        check(unsafe { sys::iree_vm_list_set_value(self.raw(), index, &scalar) })
    }

    pub(crate) fn set_buffer_view(&mut self, index: usize, view: &BufferView) -> Result<()> {
        // SAFETY: list and view are live; IREE checks the index.
        check(unsafe { sys::iree_vm_list_set_buffer_view_retain(self.raw(), index, view.raw()) })
    }

    pub(crate) fn set_fence(&mut self, index: usize, fence: Option<&Fence>) -> Result<()> {
        let Some(fence) = fence else { return self.set(index, &Value::Null) };
        // SAFETY: list and fence are live; IREE checks the index.
        check(unsafe { sys::iree_vm_list_set_fence_retain(self.raw(), index, fence.raw()) })
    }

    /// Another list of the same values.
    pub(crate) fn copy(&self) -> Result<Self> {
        let copy = Self::nulls(self.len())?;
        // SAFETY: both lists are live and of this length.
        check(unsafe { sys::iree_vm_list_copy(self.raw(), 0, copy.raw(), 0, self.len()) })?;
        Ok(copy)
    }

    /// Entry `index`, which is a `ty` of `device`.
    pub(crate) fn get(&self, index: usize, ty: &ValueType, device: &Device) -> Result<Value> {
        if let ValueType::Scalar(scalar) = ty {
            return self.get_scalar(index, *scalar);
        }
        // SAFETY: the list is live; the result is null or a new reference.
        let view = unsafe { sys::iree_vm_list_get_buffer_view_retain(self.raw(), index) };
        if !view.is_null() {
            return Ok(Value::BufferView(BufferView::own(view, device)));
        }
        // SAFETY: as above.
        let buffer = unsafe { sys::iree_vm_list_get_buffer_retain(self.raw(), index) };
        if !buffer.is_null() {
            return Ok(Value::Buffer(Buffer::own(buffer, device)));
        }
        Ok(Value::Null)
    }

    fn get_scalar(&self, index: usize, scalar: ScalarType) -> Result<Value> {
        let mut value = sys::iree_vm_value_t::default();
        // SAFETY: the list is live; IREE checks index and kind.
        check(unsafe { sys::iree_vm_list_get_value(self.raw(), index, &mut value) })?;
        // SAFETY: the calling convention says which field a result of this type fills.
        Ok(unsafe {
            let value = value.__bindgen_anon_1;
            match scalar {
                ScalarType::I32 => Value::I32(value.i32_),
                ScalarType::I64 => Value::I64(value.i64_),
                ScalarType::F32 => Value::F32(value.f32_),
                ScalarType::F64 => Value::F64(value.f64_),
            }
        })
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: a reference of ours, not used again.
        unsafe { sys::iree_vm_list_release(self.raw()) };
    }
}

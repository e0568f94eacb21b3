//! VM lists: how arguments go in and results come out, lists among them, and what values are to the
//! VM.

use std::ptr;

use iree_sys as sys;
use iree_sys::allocator::host_allocator;

use crate::base::error::{Code, Error, Result};
use crate::base::status::check;
use crate::base::text::entries;
use crate::hal::devices::device::Device;
use crate::hal::memory::buffer::Buffer;
use crate::hal::memory::buffer_view::BufferView;
use crate::hal::sync::fence::Fence;
use crate::vm::reference::{RawReference, Reference};
use crate::vm::value::Value;

/// Lists within lists that are followed; a list that contains itself has no end.
const MOST_NESTED: usize = 64;

/// A list of values of any type that nothing else uses: only who has `&mut` changes it, as VM lists
/// are thread-compatible.
pub(crate) struct List(RawReference);

impl List {
    /// An empty list with room for `capacity` values.
    pub(crate) fn with_capacity(capacity: usize) -> Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: plain creation into a valid out pointer; its only count becomes ours.
        unsafe {
            check(sys::iree_vm_list_create(
                sys::iree_vm_make_undefined_type_def(),
                capacity,
                host_allocator(),
                &mut raw,
            ))?;
            Ok(Self(RawReference::own(sys::iree_vm_list_move_ref(raw))))
        }
    }

    /// A list of `length` nulls.
    pub(crate) fn nulls(length: usize) -> Result<Self> {
        let list = Self::with_capacity(length)?;
        // SAFETY: the list is live.
        check(unsafe { sys::iree_vm_list_resize(list.raw(), length) })?;
        Ok(list)
    }

    /// A list of copies of `values`.
    pub(crate) fn of(values: &[Value]) -> Result<Self> {
        Self::nested(values, MOST_NESTED)
    }

    fn nested(values: &[Value], depth: usize) -> Result<Self> {
        let mut list = Self::nulls(values.len())?;
        for (index, value) in values.iter().enumerate() {
            match value {
                Value::List(_) if depth == 0 => return Err(too_deep()),
                Value::List(inner) => {
                    list.set_reference(index, Self::nested(inner, depth - 1)?.0)?;
                }
                value => list.set(index, value)?,
            }
        }
        Ok(list)
    }

    /// # Safety
    /// `reference` is to a list.
    pub(crate) unsafe fn own(reference: RawReference) -> Self {
        Self(reference)
    }

    pub(crate) fn into_raw(self) -> RawReference {
        self.0
    }

    pub(crate) fn raw(&self) -> *mut sys::iree_vm_list_t {
        self.0.raw().ptr.cast()
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
            Value::I32(value) => sys::iree_vm_value_make_i32(*value),
            Value::I64(value) => sys::iree_vm_value_make_i64(*value),
            Value::F32(value) => sys::iree_vm_value_make_f32(*value),
            Value::F64(value) => sys::iree_vm_value_make_f64(*value),
            reference => {
                let raw = RawReference::of(reference)?.expect("all but scalars are references");
                return self.set_reference(index, raw);
            }
        };
        // SAFETY: the list is live; IREE checks the index.
        check(unsafe { sys::iree_vm_list_set_value(self.raw(), index, &scalar) })
    }

    /// Replaces entry `index` by a tensor whose device outlives the list.
    pub(crate) fn put(&mut self, index: usize, view: BufferView) -> Result<()> {
        // SAFETY: the reference is the view's, which gives it up.
        let raw = unsafe { RawReference::own(sys::iree_hal_buffer_view_move_ref(view.into_raw())) };
        self.set_reference(index, raw)
    }

    fn set_reference(&mut self, index: usize, mut reference: RawReference) -> Result<()> {
        // SAFETY: list and reference are live; IREE checks the index, and leaves null behind where
        // it takes the count over.
        check(unsafe { sys::iree_vm_list_set_ref_move(self.raw(), index, reference.raw_mut()) })
    }

    pub(crate) fn set_fence(&mut self, index: usize, fence: Option<&Fence>) -> Result<()> {
        let Some(fence) = fence else { return self.set(index, &Value::Null) };
        // SAFETY: list and fence are live; IREE checks the index.
        check(unsafe { sys::iree_vm_list_set_fence_retain(self.raw(), index, fence.raw()) })
    }

    /// Another list of the first `count` values, with as many nulls behind them as make `length`.
    pub(crate) fn copy(&self, count: usize, length: usize) -> Result<Self> {
        let copy = Self::nulls(length)?;
        // SAFETY: both lists are live, and IREE checks the range.
        check(unsafe { sys::iree_vm_list_copy(self.raw(), 0, copy.raw(), 0, count) })?;
        Ok(copy)
    }

    /// Entry `index`, which is of `device` if it is of any.
    pub(crate) fn get(&self, index: usize, device: &Device) -> Result<Value> {
        self.get_nested(index, device, MOST_NESTED)
    }

    /// The first `count` entries.
    pub(crate) fn first(&self, count: usize, device: &Device) -> Result<Vec<Value>> {
        (0..count).map(|index| self.get(index, device)).collect()
    }

    /// All entries.
    pub(crate) fn values(&self, device: &Device) -> Result<Vec<Value>> {
        self.values_nested(device, MOST_NESTED)
    }

    fn values_nested(&self, device: &Device, depth: usize) -> Result<Vec<Value>> {
        (0..self.len()).map(|index| self.get_nested(index, device, depth)).collect()
    }

    fn get_nested(&self, index: usize, device: &Device, depth: usize) -> Result<Value> {
        let mut variant = sys::iree_vm_variant_t::default();
        // SAFETY: the list is live; IREE checks the index.
        check(unsafe { sys::iree_vm_list_get_variant_retain(self.raw(), index, &mut variant) })?;
        let kind = variant.type_.value_type_bits() as sys::iree_vm_value_type_e;
        let value = variant.__bindgen_anon_1;
        // SAFETY: the type of a variant says which field it fills, and a reference in it was
        // counted for us.
        unsafe {
            Ok(match kind {
                sys::IREE_VM_VALUE_TYPE_I8 => Value::I32(value.i8_.into()),
                sys::IREE_VM_VALUE_TYPE_I16 => Value::I32(value.i16_.into()),
                sys::IREE_VM_VALUE_TYPE_I32 => Value::I32(value.i32_),
                sys::IREE_VM_VALUE_TYPE_I64 => Value::I64(value.i64_),
                sys::IREE_VM_VALUE_TYPE_F32 => Value::F32(value.f32_),
                sys::IREE_VM_VALUE_TYPE_F64 => Value::F64(value.f64_),
                _ => {
                    let reference = RawReference::own(value.ref_);
                    if reference.raw().type_ != sys::iree_vm_list_registration
                        || reference.raw().ptr.is_null()
                    {
                        return reference.into_value(device);
                    }
                    let inner = Self(reference);
                    let depth = depth.checked_sub(1).ok_or_else(too_deep)?;
                    Value::List(inner.values_nested(device, depth)?)
                }
            })
        }
    }
}

fn too_deep() -> Error {
    Error::new(
        Code::InvalidArgument,
        format!("lists are nested more than {MOST_NESTED} deep, or one contains itself"),
    )
}

impl RawReference {
    /// What `value` is to the VM; `None` for a scalar, which is no reference.
    pub(crate) fn of(value: &Value) -> Result<Option<Self>> {
        // SAFETY: all of them are live, and counted once more for the reference that is made;
        // their types are registered as long as there is an instance.
        let raw = unsafe {
            match value {
                Value::BufferView(view) => sys::iree_hal_buffer_view_retain_ref(view.raw()),
                Value::Buffer(buffer) => sys::iree_hal_buffer_retain_ref(buffer.raw()),
                Value::Reference(reference) => {
                    return Ok(Some(Self::retain(reference.raw().raw())));
                }
                Value::List(values) => return List::of(values).map(|list| Some(list.into_raw())),
                Value::Bytes(bytes) => new_bytes(bytes)?,
                Value::Null => sys::iree_vm_ref_null(),
                Value::I32(_) | Value::I64(_) | Value::F32(_) | Value::F64(_) => return Ok(None),
            }
        };
        // SAFETY: counted just now.
        Ok(Some(unsafe { Self::own(raw) }))
    }

    /// What it refers to; lists and bytes are copied.
    ///
    /// # Safety
    /// It is of `device`, and nothing else uses a list or bytes behind it meanwhile.
    pub(crate) unsafe fn into_value(self, device: &Device) -> Result<Value> {
        let (ptr, type_) = (self.raw().ptr, self.raw().type_);
        if ptr.is_null() {
            return Ok(Value::Null);
        }
        // SAFETY: the type tells what the pointer is to, and our count keeps it; handles made of
        // it take that count over.
        unsafe {
            if type_ == sys::iree_hal_buffer_view_registration {
                return Ok(BufferView::own(self.into_raw().ptr.cast(), device).into());
            }
            if type_ == sys::iree_hal_buffer_registration {
                return Ok(Buffer::own(self.into_raw().ptr.cast(), device).into());
            }
            if type_ == sys::iree_vm_list_registration {
                return Ok(Value::List(List::own(self).values(device)?));
            }
            if type_ == sys::iree_vm_buffer_registration {
                let span = sys::iree_vm_buffer_const_contents(ptr.cast());
                return Ok(Value::Bytes(entries(span.data, span.data_length).to_vec()));
            }
        }
        Ok(Value::Reference(Reference::own(self, device)))
    }
}

/// A `!util.buffer` that holds a copy of `bytes`.
fn new_bytes(bytes: &[u8]) -> Result<sys::iree_vm_ref_t> {
    /// What compiled code may expect of such a buffer, bytes.
    const ALIGNMENT: usize = 16;
    let access = sys::IREE_VM_BUFFER_ACCESS_MUTABLE | sys::IREE_VM_BUFFER_ACCESS_ORIGIN_HOST;
    let mut buffer = std::ptr::null_mut();
    // SAFETY: plain creation into a valid out pointer; the buffer has room for the bytes, and
    // its only count becomes the reference.
    unsafe {
        check(sys::iree_vm_buffer_create(
            access as _,
            bytes.len(),
            ALIGNMENT,
            host_allocator(),
            &mut buffer,
        ))?;
        let to = sys::iree_vm_buffer_data(buffer);
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        Ok(sys::iree_vm_buffer_move_ref(buffer))
    }
}

//! References: what the VM counts and passes on without looking inside.

use std::any::Any;
use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use iree_sys as sys;
use iree_sys::allocator::host_allocator;

use crate::base::error::Result;
use crate::base::instance::Instance;
use crate::base::object::Object;
use crate::base::status::check;
use crate::base::text::text;
use crate::hal::devices::device::Device;
use crate::hal::memory::buffer::Buffer;
use crate::hal::memory::buffer_view::BufferView;
use crate::vm::list::List;
use crate::vm::value::Value;

/// Something that programs pass on without looking inside (`!util.object`): a Rust value of ours,
/// or an object of IREE that this crate has no name for. Cloning gives another handle to it.
///
/// A [`NativeModule`](crate::NativeModule) makes one, compiled code carries it, and another
/// function of it, or the caller, gets at the value again:
///
/// ```
/// # #[cfg(feature = "link")] fn main() -> iree_rt::Result<()> {
/// use iree_rt::Reference;
///
/// let words = Reference::new(vec!["one", "two"])?;
/// assert_eq!(words.downcast_ref::<Vec<&str>>().unwrap().len(), 2);
/// assert!(words.downcast_ref::<String>().is_none());
/// # Ok(()) }
/// # #[cfg(not(feature = "link"))] fn main() {}
/// ```
#[derive(Clone)]
pub struct Reference(Arc<Inner>);

struct Inner {
    raw: RawReference,
    /// Kept while objects of IREE may need it.
    device: Option<Device>,
}

impl Reference {
    /// A reference to `value`, which is dropped with the last handle, on whatever thread that
    /// is.
    ///
    /// # Errors
    /// When there is no [`Instance`].
    pub fn new<T: Any + Send + Sync>(value: T) -> Result<Self> {
        let object = Box::new(Object::new(value));
        let type_ = Instance::get()?.object_type;
        let raw = RawReference(sys::iree_vm_ref_t { ptr: Box::into_raw(object).cast(), type_ });
        Ok(Self(Arc::new(Inner { raw, device: None })))
    }

    /// The Rust value, if it is one and of this type.
    pub fn downcast_ref<T: Any>(&self) -> Option<&T> {
        let instance = Instance::get().ok()?;
        if self.0.raw.0.type_ != instance.object_type {
            return None;
        }
        // SAFETY: references of this type are to an `Object`, which lives while we hold one and
        // is never changed.
        let object = unsafe { &*self.0.raw.0.ptr.cast::<Object>() };
        object.value.downcast_ref()
    }

    /// IREE's name of its type, like `hal.fence`; `util.object` for Rust values.
    pub fn type_name(&self) -> String {
        // SAFETY: the type is of a live object; names live as long as the instance.
        unsafe { text(sys::iree_vm_ref_type_name(self.0.raw.0.type_)) }
    }

    pub(crate) fn device(&self) -> Option<&Device> {
        self.0.device.as_ref()
    }
}

impl fmt::Debug for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reference({})", self.type_name())
    }
}

/// One count of an object of the VM, or null.
pub(crate) struct RawReference(sys::iree_vm_ref_t);

// SAFETY: counts are atomic, and destroying is allowed on any thread. What is inside is reached
// only through types that say the same of themselves.
unsafe impl Send for RawReference {}
// SAFETY: as above.
unsafe impl Sync for RawReference {}

impl RawReference {
    /// Takes over a count.
    ///
    /// # Safety
    /// `raw` is null, or a reference that the caller owns and does not use again.
    pub(crate) unsafe fn own(raw: sys::iree_vm_ref_t) -> Self {
        Self(raw)
    }

    /// Counts once more what someone else refers to.
    ///
    /// # Safety
    /// `raw` is null or live.
    pub(crate) unsafe fn retain(raw: &sys::iree_vm_ref_t) -> Self {
        let mut copy = *raw;
        // SAFETY: by the contract of this function.
        unsafe { sys::iree_vm_ref_retain_inplace(&mut copy) };
        Self(copy)
    }

    /// What `value` is to the VM; `None` for a scalar, which is no reference.
    pub(crate) fn of(value: &Value) -> Result<Option<Self>> {
        // SAFETY: all of them are live, and counted once more for the reference that is made;
        // their types are registered as long as there is an instance.
        let raw = unsafe {
            match value {
                Value::BufferView(view) => sys::iree_hal_buffer_view_retain_ref(view.raw()),
                Value::Buffer(buffer) => sys::iree_hal_buffer_retain_ref(buffer.raw()),
                Value::Reference(reference) => return Ok(Some(Self::retain(&reference.0.raw.0))),
                Value::List(values) => return List::of(values).map(|list| Some(list.into_raw())),
                Value::Bytes(bytes) => new_bytes(bytes)?,
                Value::Null => sys::iree_vm_ref_null(),
                Value::I32(_) | Value::I64(_) | Value::F32(_) | Value::F64(_) => return Ok(None),
            }
        };
        Ok(Some(Self(raw)))
    }

    /// What it refers to; lists and bytes are copied.
    ///
    /// # Safety
    /// It is of `device`, and nothing else uses a list or bytes behind it meanwhile.
    pub(crate) unsafe fn into_value(self, device: &Device) -> Result<Value> {
        let (ptr, type_) = (self.0.ptr, self.0.type_);
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
                let bytes = match span.data_length {
                    0 => &[],
                    length => std::slice::from_raw_parts(span.data, length),
                };
                return Ok(Value::Bytes(bytes.to_vec()));
            }
        }
        let inner = Inner { raw: self, device: Some(device.clone()) };
        Ok(Value::Reference(Reference(Arc::new(inner))))
    }

    /// Gives the count to the caller.
    pub(crate) fn into_raw(self) -> sys::iree_vm_ref_t {
        ManuallyDrop::new(self).0
    }

    pub(crate) fn raw(&self) -> &sys::iree_vm_ref_t {
        &self.0
    }

    /// For IREE to move the count elsewhere, leaving null.
    pub(crate) fn raw_mut(&mut self) -> &mut sys::iree_vm_ref_t {
        &mut self.0
    }
}

impl Drop for RawReference {
    fn drop(&mut self) {
        // SAFETY: a count of ours, not used again.
        unsafe { sys::iree_vm_ref_release(&mut self.0) };
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

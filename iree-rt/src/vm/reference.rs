//! References: what the VM counts and passes on without looking inside.

use std::any::Any;
use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use iree_sys as sys;

use crate::base::error::Result;
use crate::base::instance::Instance;
use crate::base::object::Object;
use crate::base::text::text;
use crate::hal::devices::device::Device;

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

    /// An object of IREE of which this crate knows no more, of `device`.
    pub(crate) fn own(raw: RawReference, device: &Device) -> Self {
        Self(Arc::new(Inner { raw, device: Some(device.clone()) }))
    }

    pub(crate) fn raw(&self) -> &RawReference {
        &self.0.raw
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

//! Rust values as objects of the VM.

use std::any::Any;
use std::ffi::c_void;
use std::sync::LazyLock;
use std::sync::atomic::AtomicI32;

use iree_sys as sys;

use crate::base::callback::catch_quietly;
use crate::base::error::Result;
use crate::base::status::check;

/// A Rust value as an object of the VM, which finds the count at its start.
#[repr(C)]
pub(crate) struct Object {
    count: AtomicI32,
    pub(crate) value: Box<dyn Any + Send + Sync>,
}

impl Object {
    /// With one count.
    pub(crate) fn new(value: impl Any + Send + Sync) -> Self {
        Self { count: AtomicI32::new(1), value: Box::new(value) }
    }
}

/// What the VM knows of [`Object`]s, for the rest of the process.
struct ObjectType(sys::iree_vm_ref_type_descriptor_t);

// SAFETY: it is never changed, and its name is static.
unsafe impl Send for ObjectType {}
// SAFETY: as above.
unsafe impl Sync for ObjectType {}

static OBJECT_TYPE: LazyLock<ObjectType> = LazyLock::new(|| {
    // The count lies at offset 0, which is what the rest of the descriptor says.
    ObjectType(sys::iree_vm_ref_type_descriptor_t {
        destroy: Some(destroy),
        type_name: sys::iree_make_string_view("util.object"),
        ..Default::default()
    })
});

/// Makes `!util.object`, a type that IREE's compiler knows and its runtime does not, the type of
/// [`Object`]s.
///
/// # Safety
/// `instance` is live; no other thread registers types.
pub(crate) unsafe fn register_object(
    instance: *mut sys::iree_vm_instance_t,
) -> Result<sys::iree_vm_ref_type_t> {
    let mut type_ = 0;
    // SAFETY: by the contract of this function; the descriptor is never freed.
    check(unsafe { sys::iree_vm_instance_register_type(instance, &OBJECT_TYPE.0, &mut type_) })?;
    Ok(type_)
}

unsafe extern "C" fn destroy(object: *mut c_void) {
    // SAFETY: the box that a reference was made with; the VM destroys it once.
    catch_quietly(|| drop(unsafe { Box::from_raw(object.cast::<Object>()) }));
}

//! Host memory as device buffers, without a copy.

use std::any::Any;
use std::ffi::c_void;
use std::ptr;

use iree_sys as sys;

use crate::buffer::{ALIGNMENT, Buffer, Memory, params};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::panic::drop_quietly;
use crate::status::check;

impl Buffer {
    /// The bytes of `owner` as a read-only buffer of `device`, without a copy; `owner` (a mapped
    /// file, say) lives until the last handle of the buffer is gone.
    ///
    /// The bytes must start at a multiple of [`ALIGNMENT`] and stay where they are when `owner`
    /// is moved.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::Code::InvalidArgument) for misaligned bytes; the device's
    /// error when it cannot reach host memory: copy with [`Buffer::write`] then. `owner` is
    /// dropped.
    pub fn import<O>(device: &Device, owner: O) -> Result<Self>
    where
        O: AsRef<[u8]> + Send + Sync + 'static,
    {
        // Boxed first: a container that holds its bytes inline must not move afterwards.
        let owner = Box::new(owner);
        let bytes: &[u8] = (*owner).as_ref();
        let (pointer, length) = (bytes.as_ptr().cast_mut(), bytes.len());
        // SAFETY: the bytes live in `owner`, which the buffer keeps, and are only read: writes
        // are refused by the access mode, and modules vouch for theirs when they are loaded.
        unsafe { import(device, pointer, length, sys::IREE_HAL_MEMORY_ACCESS_READ, owner) }
    }
}

/// # Safety
/// `pointer` is valid for `length` bytes while `owner` lives, for reads and, if `access` says
/// so, for writes that nothing else observes.
pub(crate) unsafe fn import(
    device: &Device,
    pointer: *mut u8,
    length: usize,
    access: sys::iree_hal_memory_access_bits_t,
    owner: Box<dyn Any + Send>,
) -> Result<Buffer> {
    if !(pointer as usize).is_multiple_of(ALIGNMENT) {
        return Err(Error::invalid(format!(
            "host memory at {pointer:p} is not aligned to {ALIGNMENT} bytes and cannot be \
             imported; copy it into a buffer instead"
        )));
    }
    let mut external = sys::iree_hal_external_buffer_t {
        type_: sys::IREE_HAL_EXTERNAL_BUFFER_TYPE_HOST_ALLOCATION,
        flags: 0,
        size: length,
        ..Default::default()
    };
    external.handle.host_allocation.ptr = pointer.cast();
    // A thin pointer for C: the fat one is boxed once more.
    let owner = Box::into_raw(Box::new(owner));
    let release = sys::iree_hal_buffer_release_callback_t {
        fn_: Some(release_owner),
        user_data: owner.cast(),
    };
    let mut raw = ptr::null_mut();
    // SAFETY: the memory is valid (by the contract of this function) until the buffer is
    // destroyed, which drops the owner.
    let imported = check(unsafe {
        sys::iree_hal_allocator_import_buffer(
            device.allocator(),
            params(device, Memory::Host, access),
            &mut external,
            release,
            &mut raw,
        )
    });
    match imported {
        Ok(()) => Ok(Buffer::own(raw, device)),
        Err(error) => {
            // SAFETY: a failed import does not call back, and the box is still ours.
            drop(unsafe { Box::from_raw(owner) });
            Err(error
                .context(format!("importing {length} bytes of host memory on `{}`", device.uri())))
        }
    }
}

unsafe extern "C" fn release_owner(owner: *mut c_void, _buffer: *mut sys::iree_hal_buffer_t) {
    // SAFETY: the box that `import` made; IREE calls back once.
    let owner = unsafe { Box::from_raw(owner.cast::<Box<dyn Any + Send>>()) };
    drop_quietly(owner);
}

//! Memory from elsewhere as buffers, without a copy.

use std::any::Any;
use std::ffi::c_void;
use std::ptr::{self, NonNull};

use iree_sys as sys;

use crate::base::callback::catch_quietly;
use crate::base::error::{Error, Result};
use crate::base::status::check;
use crate::hal::devices::device::Device;
use crate::hal::memory::buffer::{ALIGNMENT, Buffer, Memory, params};

impl Buffer {
    /// The bytes of `owner` as a read-only buffer of `device`, without a copy; `owner` (a mapped
    /// file, say) lives until the last handle of the buffer is gone.
    ///
    /// The bytes must start at a multiple of [`ALIGNMENT`], if there are any. [`BufferView::map_constant`] shows an
    /// import.
    ///
    /// [`BufferView::map_constant`]: crate::BufferView::map_constant
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

    /// The `length` bytes of host memory at `pointer` as a buffer of `device` to read and write,
    /// without a copy; `owner` lives until the last handle of the buffer is gone.
    ///
    /// ```
    /// # #[cfg(feature = "link")] fn main() -> iree_rt::Result<()> {
    /// # let device = iree_rt::Instance::get()?.device("local-task")?;
    /// use std::ptr::NonNull;
    /// use iree_rt::{Buffer, ElementType};
    ///
    /// let mut pages = memmap2::MmapMut::map_anon(4096)?;
    /// let start = NonNull::new(pages.as_mut_ptr()).unwrap();
    /// // SAFETY: pages stay where they are when their handle is moved into the buffer.
    /// let buffer = unsafe { Buffer::import_host(&device, start, pages.len(), pages)? };
    /// let mut tensor = buffer.view(&[3], ElementType::I32)?;
    /// drop(buffer); // the tensor is the only handle then, and may be written
    /// tensor.write(0, &[1i32, 2, 3])?;
    /// // SAFETY: the buffer keeps the pages, and nobody writes them now.
    /// assert_eq!(unsafe { start.cast::<[i32; 3]>().read() }, [1, 2, 3]);
    /// # Ok(()) }
    /// # #[cfg(not(feature = "link"))] fn main() {}
    /// ```
    ///
    /// # Errors
    /// As [`import`](Self::import).
    ///
    /// # Safety
    /// The memory is valid for reads and writes while `owner` lives, wherever it is moved to, and
    /// nobody else uses it meanwhile but with the care that buffers ask for.
    pub unsafe fn import_host<O: Send + 'static>(
        device: &Device,
        pointer: NonNull<u8>,
        length: usize,
        owner: O,
    ) -> Result<Self> {
        let access = sys::IREE_HAL_MEMORY_ACCESS_ALL;
        // SAFETY: by the contract of this function.
        unsafe { import(device, pointer.as_ptr(), length, access, Box::new(owner)) }
    }

    /// The `length` bytes of device memory at `address` (a CUDA pointer, say) as a buffer of
    /// `device` to read and write, without a copy; `owner` lives until the last handle of the
    /// buffer is gone.
    ///
    /// On `local-task` and `local-sync` addresses are the host's. This is tested there and, through
    /// `BufferView::from_cuda`, on an H100.
    ///
    /// ```
    /// # #[cfg(feature = "link")] fn main() -> iree_rt::Result<()> {
    /// # let device = iree_rt::Instance::get()?.device("local-task")?;
    /// use iree_rt::{Buffer, ElementType};
    ///
    /// // What another library has allocated on the device, here a CPU.
    /// let mut pages = memmap2::MmapMut::map_anon(4096)?;
    /// pages[..4].copy_from_slice(&7f32.to_le_bytes());
    /// let address = pages.as_mut_ptr() as u64;
    /// // SAFETY: memory of this device, which the owner keeps, wherever the owner is moved to.
    /// let buffer = unsafe { Buffer::import_device(&device, address, pages.len(), pages)? };
    /// let tensor = buffer.view(&[1], ElementType::F32)?;
    /// drop(buffer); // the tensor keeps the memory
    /// assert_eq!(tensor.read::<f32>()?, [7.]);
    /// # Ok(()) }
    /// # #[cfg(not(feature = "link"))] fn main() {}
    /// ```
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::Code::InvalidArgument) for a misaligned address; the device's
    /// error when it cannot take memory over. `owner` is dropped.
    ///
    /// # Safety
    /// The memory is of this device (of its CUDA context), valid for reads and writes while
    /// `owner` lives, wherever it is moved to, and nobody else uses it meanwhile but with the care
    /// that buffers ask for.
    pub unsafe fn import_device<O: Send + 'static>(
        device: &Device,
        address: u64,
        length: usize,
        owner: O,
    ) -> Result<Self> {
        let mut external = external(sys::IREE_HAL_EXTERNAL_BUFFER_TYPE_DEVICE_ALLOCATION, length);
        external.handle.device_allocation.ptr = address;
        let params = params(device, Memory::Device, sys::IREE_HAL_MEMORY_ACCESS_ALL);
        // SAFETY: by the contract of this function.
        unsafe { import_external(device, address, external, params, Box::new(owner)) }
            .map_err(|error| error.context(format!("importing {length} bytes of device memory")))
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
    let mut external = external(sys::IREE_HAL_EXTERNAL_BUFFER_TYPE_HOST_ALLOCATION, length);
    external.handle.host_allocation.ptr = pointer.cast();
    let params = params(device, Memory::Host, access);
    // SAFETY: by the contract of this function.
    unsafe { import_external(device, pointer as u64, external, params, owner) }.map_err(|error| {
        error.context(format!("importing {length} bytes of host memory on `{}`", device.uri()))
    })
}

fn external(
    type_: sys::iree_hal_external_buffer_type_t,
    size: usize,
) -> sys::iree_hal_external_buffer_t {
    sys::iree_hal_external_buffer_t { type_, flags: 0, size, ..Default::default() }
}

/// # Safety
/// What `external` refers to is valid while `owner` lives, for what `params` allow.
unsafe fn import_external(
    device: &Device,
    address: u64,
    mut external: sys::iree_hal_external_buffer_t,
    params: sys::iree_hal_buffer_params_t,
    owner: Box<dyn Any + Send>,
) -> Result<Buffer> {
    // Nothing is anywhere: at no address that means something.
    if external.size == 0 {
        return Buffer::allocate_as(device, 0, params);
    }
    if !address.is_multiple_of(ALIGNMENT as u64) {
        return Err(Error::invalid(format!(
            "memory at {address:#x} is not aligned to {ALIGNMENT} bytes and cannot be imported; \
             copy it into a buffer instead"
        )));
    }
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
            params,
            &mut external,
            release,
            &mut raw,
        )
    });
    match imported {
        Ok(()) => Ok(Buffer::place(raw, device)),
        Err(error) => {
            // SAFETY: a failed import does not call back, and the box is still ours.
            drop(unsafe { Box::from_raw(owner) });
            Err(error)
        }
    }
}

unsafe extern "C" fn release_owner(owner: *mut c_void, _buffer: *mut sys::iree_hal_buffer_t) {
    // SAFETY: the box that `import_external` made; IREE calls back once.
    let owner = unsafe { Box::from_raw(owner.cast::<Box<dyn Any + Send>>()) };
    catch_quietly(|| drop(owner));
}

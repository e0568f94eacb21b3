//! Buffers: bytes in a device's memory, and who may write them.
//!
//! # Who may write
//!
//! Memory is shared by handles: clones of a [`Buffer`], its [parts](Buffer::subspan), its
//! [views](crate::BufferView) and their clones, what a call has as an argument or result until it is
//! done, and what other libraries were [given](crate::ExternalBuffer). The rule for all of them is
//! that of [`Arc::get_mut`](std::sync::Arc::get_mut):
//!
//! - **Who has one of several handles reads.** `read`, `map_constant`, `BufferView::to_device`
//!   and calls take shared handles.
//! - **Who has the only one writes.** `write`, `fill`, `copy_from` and `map_mut` take `&mut self`,
//!   and fail with [`FailedPrecondition`](crate::Code::FailedPrecondition) while there is another handle.
//!   So an argument does not change while a call that waits has yet to read it. A device puts away
//!   what a call held a moment after the call has returned; `write`, `fill` and `copy_from` wait
//!   for that (100 ms at most), `map_mut` does not, and `map_mut_within` as long as it is told.
//! - **What is read-only nobody writes**: memory of [`Buffer::import`], constants of modules, and
//!   parameters. Writing fails with [`PermissionDenied`](crate::Code::PermissionDenied).
//!
//! Beyond it are only those who have promised to keep readers and writers of the same bytes apart:
//!
//! - **Compiled code**, which may update an argument in place, for whoever
//!   [loaded](crate::Module::from_bytes) it. A result that is taken before it is there
//!   ([`Pending::early`](crate::Pending::early)) is for calls that wait for it; reading it until
//!   then is an error, or gives bytes that IREE copied at some moment.
//! - **`unsafe` code**: [`Buffer::write_unchecked`] and the like, [`map`](crate::BufferView::map), and
//!   addresses, imported, exported or of DLPack. A GPU's memory that is shared with `cudarc` is
//!   ordered by its streams.

use std::fmt;
use std::ops::Range;
use std::ptr::{self, NonNull};

use iree_sys as sys;
use iree_sys::allocator::host_allocator;

use crate::base::error::{Code, Error, Result};
use crate::base::status::check;
use crate::hal::devices::device::Device;

/// Alignment that compiled code expects of every tensor, bytes.
pub const ALIGNMENT: usize = 64;

/// Where a new buffer lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Memory {
    /// Fastest for the device.
    #[default]
    Device,
    /// Host memory that the device can reach: staging, and results read often.
    Host,
}

/// Bytes in a device's memory. Cloning gives another handle to the same bytes.
///
/// Any thread may hold one; [the only one](self#who-may-write) writes.
///
/// ```
/// # #[cfg(feature = "link")] fn main() -> iree_rt::Result<()> {
/// use iree_rt::{Buffer, ElementType, Instance};
///
/// let device = Instance::get()?.device("local-task")?;
/// let mut weights = Buffer::allocate(&device, 256)?;
/// weights.fill(0..256, 1f32)?;
/// weights.write(64, &[2f32, 3.])?;
///
/// // A part is the same memory; its tensors start at multiples of 64 bytes.
/// let part = weights.subspan(64..128)?;
/// let row = part.view(&[2], ElementType::F32)?;
/// assert_eq!(row.read::<f32>()?, [2., 3.]);
/// assert!(weights.fill(64..72, 0u8).is_err()); // there are other handles
/// drop((part, row));
///
/// let mut copy = Buffer::allocate(&device, 64)?;
/// copy.copy_from(0, &weights, 64, 64)?;
/// weights.fill(64..72, 0u8)?;
/// let mut bytes = [0; 8];
/// copy.read_into(0, &mut bytes)?;
/// assert_eq!(bytes, [0, 0, 0, 64, 0, 0, 64, 64]); // 2 and 3, little-endian
/// # Ok(()) }
/// # #[cfg(not(feature = "link"))] fn main() {}
/// ```
pub struct Buffer {
    raw: NonNull<sys::iree_hal_buffer_t>,
    /// Keeps the memory's origin alive: HAL buffers do not retain their device.
    device: Device,
}

// SAFETY: HAL buffers are reference-counted atomically and immutable but for their contents. Those
// safe code writes by the only handle, as the head of this file says.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// A buffer of `bytes` bytes for any use by modules of `device`; its contents are
    /// unspecified.
    ///
    /// # Errors
    /// [`ResourceExhausted`](crate::Code::ResourceExhausted) when the device has no memory for it.
    pub fn allocate(device: &Device, bytes: usize) -> Result<Self> {
        Self::allocate_in(device, bytes, Memory::default())
    }

    /// As [`allocate`](Self::allocate), in memory of a chosen kind.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    pub fn allocate_in(device: &Device, bytes: usize, memory: Memory) -> Result<Self> {
        // IREE's heap adds a header to it, without looking whether that wraps.
        if bytes > isize::MAX as usize {
            let message =
                format!("allocating {bytes} bytes on `{}`: no memory is that large", device.uri());
            return Err(Error::new(Code::ResourceExhausted, message));
        }
        Self::allocate_as(device, bytes, params(device, memory, sys::IREE_HAL_MEMORY_ACCESS_ALL))
    }

    pub(crate) fn allocate_as(
        device: &Device,
        bytes: usize,
        params: sys::iree_hal_buffer_params_t,
    ) -> Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: the allocator belongs to the live device.
        check(unsafe {
            sys::iree_hal_allocator_allocate_buffer(device.allocator(), params, bytes, &mut raw)
        })
        .map_err(|e| e.context(format!("allocating {bytes} bytes on `{}`", device.uri())))?;
        Ok(Self::place(raw, device))
    }

    /// Takes over the only reference to a buffer that the allocator of `device` has made, which may
    /// not say so: heap memory and imports know no device. A program that gives the buffer back in a
    /// session of several devices would leave no trace of whose it is.
    pub(crate) fn place(raw: *mut sys::iree_hal_buffer_t, device: &Device) -> Self {
        let raw = NonNull::new(raw).expect("IREE returned OK with a null buffer");
        // SAFETY: the buffer is live and nobody else has it; a placement holds no reference, and
        // whoever has the buffer keeps the device.
        unsafe {
            let placement = &mut (*raw.as_ptr()).placement;
            if placement.device.is_null() {
                placement.device = device.raw();
                placement.queue_affinity = u64::MAX; // IREE_HAL_QUEUE_AFFINITY_ANY
            }
        }
        Self { raw, device: device.clone() }
    }

    /// Takes over a reference that IREE returned, to a buffer on a device of `device`'s group.
    pub(crate) fn own(raw: *mut sys::iree_hal_buffer_t, device: &Device) -> Self {
        let raw = NonNull::new(raw).expect("IREE returned OK with a null buffer");
        Self { raw, device: device.holding(raw.as_ptr()) }
    }

    /// Another reference to a buffer that something else holds.
    ///
    /// # Safety
    /// `raw` is a live buffer of `device`.
    pub(crate) unsafe fn retain(raw: *mut sys::iree_hal_buffer_t, device: &Device) -> Self {
        // SAFETY: by the contract of this function.
        unsafe { sys::iree_hal_buffer_retain(raw) };
        Self::own(raw, device)
    }

    /// Bytes.
    pub fn byte_len(&self) -> usize {
        // SAFETY: the buffer is live.
        unsafe { sys::iree_hal_buffer_byte_length(self.raw()) }
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.byte_len() == 0
    }

    /// The device whose memory it is.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The part `range` of this buffer, in bytes: the same memory, kept alive by the part.
    ///
    /// # Errors
    /// [`OutOfRange`](crate::Code::OutOfRange) past the end;
    /// [`InvalidArgument`](crate::Code::InvalidArgument) for a range that ends before it starts.
    pub fn subspan(&self, range: Range<usize>) -> Result<Self> {
        let length = length(&range)?;
        self.check_range(range.start, length, "take")?;
        let mut raw = ptr::null_mut();
        // SAFETY: the buffer is live, the range was checked; the part retains the buffer.
        check(unsafe {
            sys::iree_hal_buffer_subspan(
                self.raw(),
                range.start,
                length,
                host_allocator(),
                &mut raw,
            )
        })?;
        Ok(Self::own(raw, &self.device))
    }

    pub(crate) fn raw(&self) -> *mut sys::iree_hal_buffer_t {
        self.raw.as_ptr()
    }

    /// Bytes between the start of the allocation and the start of this buffer.
    pub(crate) fn offset(&self) -> usize {
        // SAFETY: the buffer is live.
        unsafe { sys::iree_hal_buffer_byte_offset(self.raw()) }
    }
}

impl Clone for Buffer {
    fn clone(&self) -> Self {
        // SAFETY: the buffer is live and of this device.
        unsafe { Self::retain(self.raw(), &self.device) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.device.enter();
        // SAFETY: a reference of ours, not used again; the device outlives this call.
        unsafe { sys::iree_hal_buffer_release(self.raw()) };
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes on {})", self.byte_len(), self.device.uri())
    }
}

/// Allocation parameters for buffers that modules read and write.
pub(crate) fn params(
    device: &Device,
    memory: Memory,
    access: sys::iree_hal_memory_access_bits_t,
) -> sys::iree_hal_buffer_params_t {
    let memory = match memory {
        _ if device.is_local() => {
            sys::IREE_HAL_MEMORY_TYPE_DEVICE_LOCAL | sys::IREE_HAL_MEMORY_TYPE_HOST_VISIBLE
        }
        Memory::Device => sys::IREE_HAL_MEMORY_TYPE_DEVICE_LOCAL,
        Memory::Host => {
            // Cached, as reading other host memory that a GPU reaches takes the CPU very long.
            sys::IREE_HAL_MEMORY_TYPE_HOST_LOCAL
                | sys::IREE_HAL_MEMORY_TYPE_HOST_CACHED
                | sys::IREE_HAL_MEMORY_TYPE_DEVICE_VISIBLE
        }
    };
    let mapping = memory & sys::IREE_HAL_MEMORY_TYPE_HOST_VISIBLE != 0;
    let mut usage = sys::IREE_HAL_BUFFER_USAGE_DEFAULT;
    if mapping {
        usage |= sys::IREE_HAL_BUFFER_USAGE_MAPPING;
    }
    sys::iree_hal_buffer_params_t {
        usage: usage as _,
        access: access as _,
        type_: memory as _,
        queue_affinity: u64::MAX, // IREE_HAL_QUEUE_AFFINITY_ANY
        min_alignment: ALIGNMENT,
    }
}

/// How long a range is that somebody asks for.
pub(crate) fn length(range: &Range<usize>) -> Result<usize> {
    let backwards = || Error::invalid(format!("the range {range:?} ends before it starts"));
    range.end.checked_sub(range.start).ok_or_else(backwards)
}

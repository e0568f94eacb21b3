//! Buffers: bytes in a device's memory.

use std::fmt;
use std::ops::Range;
use std::ptr::{self, NonNull};

use bytemuck::NoUninit;
use iree_sys as sys;
use iree_sys::allocator::host_allocator;

use crate::base::error::{Code, Error, Result};
use crate::base::status::check;
use crate::hal::devices::device::Device;
use crate::hal::sync::timeline::Timeline;

/// Alignment that compiled code expects of every tensor, bytes.
pub const ALIGNMENT: usize = 64;

/// Most bytes on their way between devices at once.
const STAGING: usize = 4 << 20;

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
/// Any thread may hold one. Reads and writes of the same bytes are not ordered against each other
/// or against a running call: whoever writes while others read must keep them apart, or they see
/// (and leave) a mixture of old and new bytes.
///
/// ```
/// # #[cfg(feature = "link")] fn main() -> iree_rt::Result<()> {
/// use iree_rt::{Buffer, ElementType, Instance};
///
/// let device = Instance::get()?.device("local-task")?;
/// let weights = Buffer::allocate(&device, 256)?;
/// weights.fill(0..256, 1f32)?;
/// weights.write(64, &[2f32, 3.])?;
///
/// // A part is the same memory; its tensors start at multiples of 64 bytes.
/// let part = weights.subspan(64..128)?;
/// let row = part.view(&[2], ElementType::F32)?;
/// assert_eq!(row.read::<f32>()?, [2., 3.]);
///
/// let copy = Buffer::allocate(&device, 64)?;
/// copy.copy_from(0, &weights, 64, 64)?;
/// weights.fill(64..72, 0u8)?;
/// let mut bytes = [0; 8];
/// copy.read_into(0, &mut bytes)?;
/// assert_eq!(bytes, [0, 0, 0, 64, 0, 0, 64, 64]); // 2 and 3, little-endian
/// assert_eq!(row.read::<f32>()?, [0., 0.]);
/// # Ok(()) }
/// # #[cfg(not(feature = "link"))] fn main() {}
/// ```
pub struct Buffer {
    raw: NonNull<sys::iree_hal_buffer_t>,
    /// Keeps the memory's origin alive: HAL buffers do not retain their device.
    device: Device,
}

// SAFETY: HAL buffers are reference-counted atomically and immutable but for their contents. Those
// are copied in and out by IREE, never referenced from Rust but through the unsafe `map`; keeping
// writers and readers of the same bytes apart is the users' part (see above).
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// A buffer of `bytes` bytes for any use by modules of `device`; its contents are
    /// unspecified.
    ///
    /// # Errors
    /// [`ResourceExhausted`](Code::ResourceExhausted) when the device has no memory for it.
    pub fn allocate(device: &Device, bytes: usize) -> Result<Self> {
        Self::allocate_in(device, bytes, Memory::default())
    }

    /// As [`allocate`](Self::allocate), in memory of a chosen kind.
    ///
    /// # Errors
    /// As [`allocate`](Self::allocate).
    pub fn allocate_in(device: &Device, bytes: usize, memory: Memory) -> Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: the allocator belongs to the live device.
        check(unsafe {
            sys::iree_hal_allocator_allocate_buffer(
                device.allocator(),
                params(device, memory, sys::IREE_HAL_MEMORY_ACCESS_ALL),
                bytes,
                &mut raw,
            )
        })
        .map_err(|e| e.context(format!("allocating {bytes} bytes on `{}`", device.uri())))?;
        Ok(Self::own(raw, device))
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
    pub fn len(&self) -> usize {
        // SAFETY: the buffer is live.
        unsafe { sys::iree_hal_buffer_byte_length(self.raw()) }
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The device whose memory it is.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Copies `data` to the bytes from `offset` on.
    ///
    /// # Errors
    /// [`OutOfRange`](Code::OutOfRange) past the end;
    /// [`PermissionDenied`](Code::PermissionDenied) for imported read-only memory.
    pub fn write<T: NoUninit>(&self, offset: usize, data: &[T]) -> Result<()> {
        let bytes: &[u8] = bytemuck::cast_slice(data);
        self.check_range(offset, bytes.len(), "write")?;
        self.check_writable()?;
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: device and buffer are live; the range was checked.
        check(unsafe {
            sys::iree_hal_device_transfer_h2d(
                self.device.raw(),
                bytes.as_ptr().cast(),
                self.raw(),
                offset,
                bytes.len(),
                0,
                sys::iree_infinite_timeout(),
            )
        })
    }

    /// Copies the bytes from `offset` on to fill `out`.
    ///
    /// # Errors
    /// [`OutOfRange`](Code::OutOfRange) past the end.
    pub fn read_into(&self, offset: usize, out: &mut [u8]) -> Result<()> {
        // SAFETY: the slice is valid for writes of its length.
        unsafe { self.read_raw(offset, out.as_mut_ptr(), out.len()) }
    }

    /// # Safety
    /// `out` is valid for writes of `bytes` bytes.
    pub(crate) unsafe fn read_raw(&self, offset: usize, out: *mut u8, bytes: usize) -> Result<()> {
        self.check_range(offset, bytes, "read")?;
        if bytes == 0 {
            return Ok(());
        }
        // SAFETY: device and buffer are live; the range was checked.
        check(unsafe {
            sys::iree_hal_device_transfer_d2h(
                self.device.raw(),
                self.raw(),
                offset,
                out.cast(),
                bytes,
                0,
                sys::iree_infinite_timeout(),
            )
        })
    }

    /// Fills the bytes of `range` with copies of `pattern` (1, 2 or 4 bytes wide), on the device.
    ///
    /// # Errors
    /// [`OutOfRange`](Code::OutOfRange) past the end; [`InvalidArgument`](Code::InvalidArgument)
    /// for another width, or a range that is no multiple of it.
    pub fn fill<T: NoUninit>(&self, range: Range<usize>, pattern: T) -> Result<()> {
        let bytes = bytemuck::bytes_of(&pattern);
        let length = range.end.saturating_sub(range.start);
        self.check_range(range.start, length, "fill")?;
        self.check_writable()?;
        let width = bytes.len();
        if !matches!(width, 1 | 2 | 4)
            || !length.is_multiple_of(width)
            || !range.start.is_multiple_of(width)
        {
            return Err(Error::invalid(format!(
                "cannot fill bytes {range:?} with a pattern of {width} bytes: a pattern has 1, 2 \
                 or 4 and divides the range"
            )));
        }
        if length == 0 {
            return Ok(());
        }
        Timeline::new(&self.device, 0)?.run(|signal| {
            // SAFETY: device, buffer and semaphore are live; the pattern is copied.
            unsafe {
                sys::iree_hal_device_queue_fill(
                    self.device.raw(),
                    u64::MAX, // IREE_HAL_QUEUE_AFFINITY_ANY
                    sys::iree_hal_semaphore_list_t::default(),
                    signal,
                    self.raw(),
                    range.start,
                    length,
                    bytes.as_ptr().cast(),
                    width,
                    0,
                )
            }
        })
    }

    /// Copies `length` bytes of `source` from `source_offset` on to the bytes from `offset` on: on
    /// the device, or between devices, through the host if they cannot reach each other's memory.
    ///
    /// # Errors
    /// [`OutOfRange`](Code::OutOfRange) past the end of either;
    /// [`InvalidArgument`](Code::InvalidArgument) when the ranges overlap.
    pub fn copy_from(
        &self,
        offset: usize,
        source: &Self,
        source_offset: usize,
        length: usize,
    ) -> Result<()> {
        self.check_range(offset, length, "write")?;
        source.check_range(source_offset, length, "read")?;
        self.check_writable()?;
        if self.device != source.device {
            return self.copy_between(offset, source, source_offset, length);
        }
        // SAFETY: both buffers are live.
        let overlap = unsafe {
            sys::iree_hal_buffer_test_overlap(
                source.raw(),
                source_offset,
                length,
                self.raw(),
                offset,
                length,
            )
        };
        if length == 0 {
            return Ok(());
        }
        if overlap != sys::IREE_HAL_BUFFER_OVERLAP_DISJOINT {
            return Err(Error::invalid("cannot copy between overlapping ranges of one buffer"));
        }
        // SAFETY: device and buffers are live; the ranges were checked.
        check(unsafe {
            sys::iree_hal_device_transfer_d2d(
                self.device.raw(),
                source.raw(),
                source_offset,
                self.raw(),
                offset,
                length,
                0,
                sys::iree_infinite_timeout(),
            )
        })
    }

    /// [`copy_from`](Self::copy_from) a buffer of another device; the ranges were checked.
    fn copy_between(
        &self,
        offset: usize,
        source: &Self,
        source_offset: usize,
        length: usize,
    ) -> Result<()> {
        if self.device.is_local() && source.device.is_local() {
            // SAFETY: both buffers are live, and host memory.
            return check(unsafe {
                sys::iree_hal_buffer_map_copy(
                    source.raw(),
                    source_offset,
                    self.raw(),
                    offset,
                    length,
                )
            });
        }
        let mut staging = vec![0u8; length.min(STAGING)];
        for start in (0..length).step_by(STAGING) {
            let part = &mut staging[..STAGING.min(length - start)];
            source.read_into(source_offset + start, part)?;
            self.write(offset + start, part)?;
        }
        Ok(())
    }

    /// The part `range` of this buffer, in bytes: the same memory, kept alive by the part.
    ///
    /// # Errors
    /// [`OutOfRange`](Code::OutOfRange) past the end.
    pub fn subspan(&self, range: Range<usize>) -> Result<Self> {
        let length = range.end.saturating_sub(range.start);
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

    pub(crate) fn check_range(&self, offset: usize, length: usize, verb: &str) -> Result<()> {
        match offset.checked_add(length) {
            Some(end) if end <= self.len() => Ok(()),
            _ => Err(Error::new(
                Code::OutOfRange,
                format!(
                    "cannot {verb} {length} bytes at byte {offset} of a buffer of {} bytes",
                    self.len()
                ),
            )),
        }
    }

    pub(crate) fn is_writable(&self) -> bool {
        // SAFETY: the buffer is live.
        let access = unsafe { sys::iree_hal_buffer_allowed_access(self.raw()) };
        u32::from(access) & sys::IREE_HAL_MEMORY_ACCESS_WRITE != 0
    }

    fn check_writable(&self) -> Result<()> {
        if self.is_writable() {
            return Ok(());
        }
        Err(Error::new(Code::PermissionDenied, "the buffer is read-only (imported host memory)"))
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
        write!(f, "Buffer({} bytes on {})", self.len(), self.device.uri())
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

//! Buffers for other libraries, without a copy.

use std::ptr::NonNull;

use iree_sys as sys;

use crate::base::error::Result;
use crate::base::status::check;
use crate::hal::memory::buffer::{Buffer, Memory};

/// The memory of a [`Buffer`] for another library, which it keeps alive; made by
/// [`Buffer::export`].
///
/// It is a handle as others are: while it is there, [nobody writes](crate::buffer#who-may-write) the
/// memory in safe code. The other library keeps its own writes apart from reads, and its reads from
/// compiled code that updates the buffer in place.
#[derive(Clone, Debug)]
pub struct ExternalBuffer {
    buffer: Buffer,
    memory: Memory,
    address: u64,
}

impl ExternalBuffer {
    /// Of which kind the address is.
    pub fn memory(&self) -> Memory {
        self.memory
    }

    /// The address of the first byte, on the host or on the device.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The first byte, when it is the host's.
    pub fn as_ptr(&self) -> Option<*mut u8> {
        (self.memory == Memory::Host).then_some(self.address as *mut u8)
    }

    /// Bytes.
    pub fn byte_len(&self) -> usize {
        self.buffer.byte_len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// The buffer.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }
}

impl Buffer {
    /// The memory of this buffer for another library: its address on the host or on the device
    /// (a CUDA pointer, say), and what keeps it alive.
    ///
    /// ```
    /// # #[cfg(feature = "link")] fn main() -> iree_rt::Result<()> {
    /// # use iree_rt::Memory;
    /// # let device = iree_rt::Instance::get()?.device("local-task")?;
    /// let external = device.buffer_view(&[2], &[1f32, 2.])?.buffer().export(Memory::Host)?;
    /// // Everything else is gone; this keeps the bytes.
    /// let floats = external.as_ptr().unwrap().cast::<f32>();
    /// // SAFETY: two floats that nobody writes.
    /// assert_eq!(unsafe { floats.add(1).read() }, 2.);
    /// # Ok(()) }
    /// # #[cfg(not(feature = "link"))] fn main() {}
    /// ```
    ///
    /// # Errors
    /// The device's own when its memory has no such address.
    pub fn export(&self, memory: Memory) -> Result<ExternalBuffer> {
        let kind = match memory {
            Memory::Host => sys::IREE_HAL_EXTERNAL_BUFFER_TYPE_HOST_ALLOCATION,
            Memory::Device => sys::IREE_HAL_EXTERNAL_BUFFER_TYPE_DEVICE_ALLOCATION,
        };
        let mut external = sys::iree_hal_external_buffer_t::default();
        // Drivers of GPUs export whole allocations, and take a part of one for another kind of buffer.
        let (whole, offset) = match memory {
            // SAFETY: the buffer is live and holds its allocation.
            Memory::Device if !self.device().is_local() => unsafe {
                (sys::iree_hal_buffer_allocated_buffer(self.raw()), self.offset() as u64)
            },
            _ => (self.raw(), 0),
        };
        // SAFETY: the allocator belongs to the live device of the live buffer.
        check(unsafe {
            sys::iree_hal_allocator_export_buffer(
                self.device().allocator(),
                whole,
                kind,
                0,
                &mut external,
            )
        })
        .map_err(|error| error.context("exporting a buffer"))?;
        // SAFETY: an export of the type fills the field of that type.
        let address = unsafe {
            match memory {
                Memory::Host => external.handle.host_allocation.ptr as u64,
                Memory::Device => external.handle.device_allocation.ptr + offset,
            }
        };
        Ok(ExternalBuffer { buffer: self.clone(), memory, address })
    }

    /// The address of its first byte, when its memory can be addressed by the host.
    ///
    /// The memory stays where it is while the buffer lives. Reading it while something writes
    /// the buffer, or writing it at all when it was imported read-only, is a data race.
    pub fn host_ptr(&self) -> Option<NonNull<u8>> {
        NonNull::new(self.export(Memory::Host).ok()?.as_ptr()?)
    }
}

//! Transfers: bytes into, out of and between buffers.

use std::ops::Range;

use bytemuck::NoUninit;
use iree_sys as sys;

use crate::base::error::{Code, Error, Result};
use crate::base::status::check;
use crate::hal::memory::buffer::{Buffer, length};
use crate::hal::memory::exclusive::PUT_AWAY;
use crate::hal::sync::timeline::Timeline;

/// Most bytes on their way between devices at once.
const STAGING: usize = 4 << 20;

impl Buffer {
    /// Copies `data` to the bytes from `offset` on.
    ///
    /// # Errors
    /// [`OutOfRange`](Code::OutOfRange) past the end;
    /// [`PermissionDenied`](Code::PermissionDenied) for read-only memory;
    /// [`FailedPrecondition`](Code::FailedPrecondition) when there is
    /// [another handle](crate::buffer#who-may-write).
    pub fn write<T: NoUninit>(&mut self, offset: usize, data: &[T]) -> Result<()> {
        self.check_write(offset, size_of_val(data), "write")?;
        self.exclusive(PUT_AWAY)?;
        // SAFETY: nobody else has a handle.
        unsafe { self.write_unchecked(offset, data) }
    }

    /// As [`write`](Self::write), by one of several handles.
    ///
    /// # Errors
    /// As [`write`](Self::write), but for the last.
    ///
    /// # Safety
    /// Nobody else reads or writes these bytes meanwhile: no call that has the buffer as an argument,
    /// and no thread through another handle.
    pub unsafe fn write_unchecked<T: NoUninit>(&self, offset: usize, data: &[T]) -> Result<()> {
        let bytes: &[u8] = bytemuck::cast_slice(data);
        self.check_write(offset, bytes.len(), "write")?;
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: device and buffer are live; the range was checked.
        check(unsafe {
            sys::iree_hal_device_transfer_h2d(
                self.device().raw(),
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
        self.check_range(offset, out.len(), "read")?;
        if out.is_empty() {
            return Ok(());
        }
        // SAFETY: device and buffer are live; the range was checked, and the slice is valid for
        // writes of its length.
        check(unsafe {
            sys::iree_hal_device_transfer_d2h(
                self.device().raw(),
                self.raw(),
                offset,
                out.as_mut_ptr().cast(),
                out.len(),
                0,
                sys::iree_infinite_timeout(),
            )
        })
    }

    /// Fills the bytes of `range` with copies of `pattern` (1, 2 or 4 bytes wide), on the device.
    ///
    /// # Errors
    /// As [`write`](Self::write); [`InvalidArgument`](Code::InvalidArgument) for another width, a
    /// range that is no multiple of it, or one that ends before it starts.
    pub fn fill<T: NoUninit>(&mut self, range: Range<usize>, pattern: T) -> Result<()> {
        self.check_fill(&range, size_of::<T>())?;
        self.exclusive(PUT_AWAY)?;
        // SAFETY: nobody else has a handle.
        unsafe { self.fill_unchecked(range, pattern) }
    }

    /// As [`fill`](Self::fill), by one of several handles.
    ///
    /// # Errors
    /// As [`fill`](Self::fill), but for the other handles.
    ///
    /// # Safety
    /// As [`write_unchecked`](Self::write_unchecked).
    pub unsafe fn fill_unchecked<T: NoUninit>(
        &self,
        range: Range<usize>,
        pattern: T,
    ) -> Result<()> {
        let bytes = bytemuck::bytes_of(&pattern);
        self.check_fill(&range, bytes.len())?;
        if range.is_empty() {
            return Ok(());
        }
        Timeline::new(self.device(), 0)?.run(|signal| {
            // SAFETY: device, buffer and semaphore are live; the pattern is copied.
            unsafe {
                sys::iree_hal_device_queue_fill(
                    self.device().raw(),
                    u64::MAX, // IREE_HAL_QUEUE_AFFINITY_ANY
                    sys::iree_hal_semaphore_list_t::default(),
                    signal,
                    self.raw(),
                    range.start,
                    range.len(),
                    bytes.as_ptr().cast(),
                    bytes.len(),
                    0,
                )
            }
        })
    }

    /// Copies `length` bytes of `source` from `source_offset` on to the bytes from `offset` on: on
    /// the device, or between devices, through the host if they cannot reach each other's memory.
    ///
    /// # Errors
    /// As [`write`](Self::write), and [`OutOfRange`](Code::OutOfRange) past the end of `source`.
    pub fn copy_from(
        &mut self,
        offset: usize,
        source: &Self,
        source_offset: usize,
        length: usize,
    ) -> Result<()> {
        self.check_write(offset, length, "write")?;
        self.exclusive(PUT_AWAY)?;
        // SAFETY: nobody else has a handle.
        unsafe { self.copy_from_unchecked(offset, source, source_offset, length) }
    }

    /// As [`copy_from`](Self::copy_from), by one of several handles.
    ///
    /// # Errors
    /// As [`copy_from`](Self::copy_from), but for the other handles, and
    /// [`InvalidArgument`](Code::InvalidArgument) when the ranges overlap.
    ///
    /// # Safety
    /// As [`write_unchecked`](Self::write_unchecked).
    pub unsafe fn copy_from_unchecked(
        &self,
        offset: usize,
        source: &Self,
        source_offset: usize,
        length: usize,
    ) -> Result<()> {
        self.check_write(offset, length, "write")?;
        source.check_range(source_offset, length, "read")?;
        if length == 0 {
            return Ok(());
        }
        if self.device() != source.device() {
            // SAFETY: by the contract of this function.
            return unsafe { self.copy_between(offset, source, source_offset, length) };
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
        if overlap != sys::IREE_HAL_BUFFER_OVERLAP_DISJOINT {
            return Err(Error::invalid("cannot copy between overlapping ranges of one buffer"));
        }
        // SAFETY: device and buffers are live; the ranges were checked.
        check(unsafe {
            sys::iree_hal_device_transfer_d2d(
                self.device().raw(),
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

    /// Copies from a buffer of another device; the ranges were checked.
    ///
    /// # Safety
    /// As [`write_unchecked`](Self::write_unchecked).
    unsafe fn copy_between(
        &self,
        offset: usize,
        source: &Self,
        source_offset: usize,
        length: usize,
    ) -> Result<()> {
        if self.device().is_local() && source.device().is_local() {
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
            // SAFETY: by the contract of this function.
            unsafe { self.write_unchecked(offset + start, part)? };
        }
        Ok(())
    }

    pub(crate) fn check_range(&self, offset: usize, length: usize, verb: &str) -> Result<()> {
        match offset.checked_add(length) {
            Some(end) if end <= self.byte_len() => Ok(()),
            _ => Err(Error::new(
                Code::OutOfRange,
                format!(
                    "cannot {verb} {length} bytes at byte {offset} of a buffer of {} bytes",
                    self.byte_len()
                ),
            )),
        }
    }

    pub(crate) fn is_writable(&self) -> bool {
        // SAFETY: the buffer is live.
        let access = unsafe { sys::iree_hal_buffer_allowed_access(self.raw()) };
        u32::from(access) & sys::IREE_HAL_MEMORY_ACCESS_WRITE != 0
    }

    pub(crate) fn check_write(&self, offset: usize, length: usize, verb: &str) -> Result<()> {
        self.check_range(offset, length, verb)?;
        if self.is_writable() {
            return Ok(());
        }
        Err(Error::new(
            Code::PermissionDenied,
            "the memory is read-only (imported, a parameter, a constant): copy it to write to it",
        ))
    }

    fn check_fill(&self, range: &Range<usize>, width: usize) -> Result<()> {
        let length = length(range)?;
        self.check_write(range.start, length, "fill")?;
        if matches!(width, 1 | 2 | 4)
            && length.is_multiple_of(width)
            && range.start.is_multiple_of(width)
        {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "cannot fill bytes {range:?} with a pattern of {width} bytes: a pattern has 1, 2 or 4 \
             and divides the range"
        )))
    }
}

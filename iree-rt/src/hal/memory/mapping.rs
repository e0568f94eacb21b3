//! Mapping: the bytes of a buffer in place, without a copy.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::slice;
use std::time::Duration;

use iree_sys as sys;

use crate::base::error::{Code, Error, Result};
use crate::base::status::check;
use crate::hal::memory::buffer::Buffer;
use crate::hal::memory::buffer_view::{BufferView, bad_bits};
use crate::hal::memory::element::Element;

impl Buffer {
    /// The bytes in place, to read.
    ///
    /// # Errors
    /// As [`BufferView::map`].
    ///
    /// # Safety
    /// As [`BufferView::map`].
    pub unsafe fn map(&self) -> Result<Mapped<'_, u8>> {
        // SAFETY: by the contract of this function; any bytes are values of u8.
        Ok(unsafe { Mapped::new(Mapping::new(self.raw(), self.byte_len(), READ)?) })
    }

    /// The bytes in place, to read and write, when this is the only handle to them.
    ///
    /// # Errors
    /// As [`BufferView::map_mut`].
    pub fn map_mut(&mut self) -> Result<MappedMut<'_, u8>> {
        self.map_mut_within(Duration::ZERO)
    }

    /// As [`map_mut`](Self::map_mut), waiting so long for other handles to go.
    ///
    /// # Errors
    /// As [`BufferView::map_mut`].
    pub fn map_mut_within(&mut self, limit: Duration) -> Result<MappedMut<'_, u8>> {
        self.exclusive(limit)?;
        // SAFETY: nobody else has a handle to get at the bytes with, or can get one.
        Ok(unsafe { MappedMut::new(Mapping::new(self.raw(), self.byte_len(), READ_WRITE)?) })
    }
}

impl BufferView {
    /// The elements in place, to read, when the host can address the device's memory.
    ///
    /// # Errors
    /// [`InvalidArgument`](Code::InvalidArgument) when the elements are no `T`;
    /// [`DataLoss`](Code::DataLoss) when the bytes are no values of it;
    /// [`PermissionDenied`](Code::PermissionDenied) and the like when the memory is not the host's:
    /// [`read`](Self::read) it.
    ///
    /// # Safety
    /// Nothing writes the buffer while the guard lives: no call that updates this tensor in
    /// place, and no `write`, `fill`, `copy_from` or `map_mut` through any handle.
    pub unsafe fn map<T: Element>(&self) -> Result<Mapped<'_, T>> {
        self.check_type::<T>()?;
        let mapping = Mapping::new(self.buffer().raw(), self.byte_len(), READ)?;
        mapping.check::<T>()?;
        // SAFETY: by the contract of this function; the bytes are values of T.
        Ok(unsafe { Mapped::new(mapping) })
    }

    /// The elements of memory that nobody writes, in place: of [`Buffer::import`], and constants
    /// of a module.
    ///
    /// ```
    /// # #[cfg(feature = "link")] fn main() -> iree_rt::Result<()> {
    /// # let device = iree_rt::Instance::get()?.device("local-task")?;
    /// use iree_rt::{Buffer, ElementType};
    ///
    /// let file = memmap2::MmapMut::map_anon(64)?.make_read_only()?; // in place of a mapped file
    /// let imported = Buffer::import(&device, file)?.view(&[16], ElementType::F32)?;
    /// let mut clone = imported.clone();
    /// assert_eq!(imported.map_constant::<f32>()?[..], [0.; 16]);
    /// assert_eq!(clone.map_constant::<f32>()?[..], [0.; 16]);
    /// assert!(clone.write(0, &[1f32]).is_err());
    /// # Ok(()) }
    /// # #[cfg(not(feature = "link"))] fn main() {}
    /// ```
    ///
    /// # Errors
    /// As [`map`](Self::map), and [`FailedPrecondition`](Code::FailedPrecondition) for memory that
    /// can be written.
    pub fn map_constant<T: Element>(&self) -> Result<Mapped<'_, T>> {
        if self.buffer().is_writable() {
            return Err(Error::new(
                Code::FailedPrecondition,
                "the tensor is in memory that can be written: only read-only memory is constant",
            ));
        }
        // SAFETY: whoever made the buffer vouched that its bytes do not change, writes of ours are
        // refused, and modules vouch for theirs when they are loaded.
        unsafe { self.map() }
    }

    /// The elements in place, to read and write, when this is
    /// [the only handle](crate::buffer#who-may-write) to them.
    ///
    /// ```
    /// # #[cfg(feature = "link")] fn main() -> iree_rt::Result<()> {
    /// # let device = iree_rt::Instance::get()?.device("local-task")?;
    /// let mut tensor = device.buffer_view(&[2, 2], &[1f32, 2., 3., 4.])?;
    /// for x in tensor.map_mut::<f32>()?.iter_mut() {
    ///     *x *= 10.;
    /// }
    /// assert_eq!(tensor.read::<f32>()?, [10., 20., 30., 40.]);
    /// let _other = tensor.clone();
    /// assert!(tensor.map_mut::<f32>().is_err());
    /// # Ok(()) }
    /// # #[cfg(not(feature = "link"))] fn main() {}
    /// ```
    ///
    /// # Errors
    /// As [`map`](Self::map); [`FailedPrecondition`](Code::FailedPrecondition) when there is
    /// [another handle](crate::buffer#who-may-write), at once: a call that has just returned may
    /// hold it for another moment ([`map_mut_within`](Self::map_mut_within) waits);
    /// [`PermissionDenied`](Code::PermissionDenied) for read-only memory.
    pub fn map_mut<T: Element>(&mut self) -> Result<MappedMut<'_, T>> {
        self.map_mut_within(Duration::ZERO)
    }

    /// As [`map_mut`](Self::map_mut), waiting so long for other handles to go.
    ///
    /// # Errors
    /// As [`map_mut`](Self::map_mut).
    pub fn map_mut_within<T: Element>(&mut self, limit: Duration) -> Result<MappedMut<'_, T>> {
        self.check_type::<T>()?;
        self.exclusive(limit)?;
        // SAFETY: the view is live and holds its buffer.
        let buffer = unsafe { sys::iree_hal_buffer_view_buffer(self.raw()) };
        let mapping = Mapping::new(buffer, self.byte_len(), READ_WRITE)?;
        mapping.check::<T>()?;
        // SAFETY: nobody else has a handle to get at the bytes with, or can get one; they are
        // values of T.
        Ok(unsafe { MappedMut::new(mapping) })
    }
}

const READ: sys::iree_hal_memory_access_bits_t = sys::IREE_HAL_MEMORY_ACCESS_READ;
const READ_WRITE: sys::iree_hal_memory_access_bits_t =
    sys::IREE_HAL_MEMORY_ACCESS_READ | sys::IREE_HAL_MEMORY_ACCESS_WRITE;

/// Bytes that IREE mapped; unmapped when dropped.
pub(crate) struct Mapping {
    raw: sys::iree_hal_buffer_mapping_t,
    /// What was asked for; there may be more.
    length: usize,
    written: bool,
}

// SAFETY: a mapping may be used and ended on any thread.
unsafe impl Send for Mapping {}
// SAFETY: through a shared reference it is only read.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// All bytes of `buffer`, to read and write.
    ///
    /// # Safety
    /// While it lives, nobody else reads or writes them.
    pub(crate) unsafe fn of(buffer: &Buffer) -> Result<Self> {
        Self::new(buffer.raw(), buffer.byte_len(), READ_WRITE)
    }

    /// The bytes.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: mapped; nobody else has the bytes (by the contract of `of`).
        unsafe { slice::from_raw_parts_mut(self.pointer(), self.length) }
    }

    /// The first `length` bytes of a live buffer, which the mapping retains.
    fn new(
        buffer: *mut sys::iree_hal_buffer_t,
        length: usize,
        access: sys::iree_hal_memory_access_bits_t,
    ) -> Result<Self> {
        let mut mapping = Self { raw: Default::default(), length, written: false };
        if length == 0 {
            return Ok(mapping);
        }
        // SAFETY: the buffer is live; IREE checks length and access.
        check(unsafe {
            sys::iree_hal_buffer_map_range(
                buffer,
                sys::IREE_HAL_MAPPING_MODE_SCOPED as _,
                access as _,
                0,
                length,
                &mut mapping.raw,
            )
        })
        .map_err(|error| error.context("mapping a buffer into the memory of the host"))?;
        mapping.written = access == READ_WRITE;
        // SAFETY: the mapping is live.
        unsafe {
            if !coherent(mapping.raw.buffer) {
                check(sys::iree_hal_buffer_mapping_invalidate_range(&mut mapping.raw, 0, length))?;
            }
        }
        Ok(mapping)
    }

    fn is_mapped(&self) -> bool {
        !self.raw.buffer.is_null()
    }

    /// Aligned for any element, also when there are no bytes.
    fn pointer(&self) -> *mut u8 {
        if self.is_mapped() {
            self.raw.contents.data
        } else {
            std::ptr::dangling_mut::<u128>().cast()
        }
    }

    /// Whether all bytes are values of `T`.
    fn check<T: Element>(&self) -> Result<()> {
        // SAFETY: mapped, and written by nobody (by the contracts of those who call this).
        let bytes = unsafe { slice::from_raw_parts(self.pointer(), self.length) };
        bytemuck::checked::try_cast_slice::<u8, T>(bytes).map_err(|e| bad_bits::<T>(e))?;
        Ok(())
    }
}

/// # Safety
/// The buffer is live.
unsafe fn coherent(buffer: *mut sys::iree_hal_buffer_t) -> bool {
    // SAFETY: by the contract of this function.
    let memory = unsafe { sys::iree_hal_buffer_memory_type(buffer) };
    memory & sys::IREE_HAL_MEMORY_TYPE_HOST_COHERENT != 0
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if !self.is_mapped() {
            return;
        }
        // SAFETY: the mapping is live and not used again. Neither fails on memory that could be
        // mapped, and nobody could be told.
        unsafe {
            if self.written && !coherent(self.raw.buffer) {
                let flush = sys::iree_hal_buffer_mapping_flush_range;
                let _ = check(flush(&mut self.raw, 0, self.length));
            }
            let _ = check(sys::iree_hal_buffer_unmap_range(&mut self.raw));
        }
    }
}

/// Elements in place, to read; made by [`BufferView::map`] and others.
pub struct Mapped<'a, T> {
    mapping: Mapping,
    elements: PhantomData<&'a [T]>,
}

impl<T> Mapped<'_, T> {
    /// # Safety
    /// The bytes are values of `T`, and nobody writes them for the lifetime.
    unsafe fn new(mapping: Mapping) -> Self {
        Self { mapping, elements: PhantomData }
    }
}

impl<T> Deref for Mapped<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        let (pointer, count) = (self.mapping.pointer(), self.mapping.length / size_of::<T>());
        // SAFETY: by the contract of `new`; the mapping is aligned for elements.
        unsafe { slice::from_raw_parts(pointer.cast(), count) }
    }
}

/// Elements in place, to read and write; made by [`BufferView::map_mut`] and others.
pub struct MappedMut<'a, T> {
    mapping: Mapping,
    elements: PhantomData<&'a mut [T]>,
}

impl<T> MappedMut<'_, T> {
    /// # Safety
    /// The bytes are values of `T`, and nobody else reads or writes them for the lifetime.
    unsafe fn new(mapping: Mapping) -> Self {
        Self { mapping, elements: PhantomData }
    }
}

impl<T> Deref for MappedMut<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        let (pointer, count) = (self.mapping.pointer(), self.mapping.length / size_of::<T>());
        // SAFETY: by the contract of `new`; the mapping is aligned for elements.
        unsafe { slice::from_raw_parts(pointer.cast(), count) }
    }
}

impl<T> DerefMut for MappedMut<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        let (pointer, count) = (self.mapping.pointer(), self.mapping.length / size_of::<T>());
        // SAFETY: as in `deref`, and nobody else has the bytes.
        unsafe { slice::from_raw_parts_mut(pointer.cast(), count) }
    }
}

impl<T: fmt::Debug> fmt::Debug for Mapped<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&**self).finish()
    }
}

impl<T: fmt::Debug> fmt::Debug for MappedMut<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&**self).finish()
    }
}

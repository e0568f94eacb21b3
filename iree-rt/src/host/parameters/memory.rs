//! Host memory that IREE takes parameters from, or hands out as a buffer.

use std::any::Any;
use std::ffi::c_void;
use std::fs::File;
use std::ptr;
use std::slice;
use std::sync::Arc;

use iree_sys as sys;
use iree_sys::allocator::host_allocator;
use memmap2::{MmapMut, MmapOptions};

use crate::base::callback::catch_quietly;
use crate::base::error::{Error, Result};
use crate::base::status::check;

/// Bytes that nobody writes once they are here: programs get them as read-only buffers, or copies.
#[derive(Clone)]
pub(super) struct Memory {
    start: *mut u8,
    length: usize,
    owner: Arc<dyn Any + Send + Sync>,
}

/// Memory as IREE wants it for buffers.
#[repr(align(64))]
#[derive(Clone, Copy)]
struct Block(#[expect(dead_code, reason = "its size and alignment count")] [u8; 64]);

impl Memory {
    pub(super) fn copy(bytes: &[u8]) -> Self {
        let mut blocks = vec![Block([0; 64]); bytes.len().div_ceil(size_of::<Block>())];
        let start = blocks.as_mut_ptr().cast::<u8>();
        // SAFETY: the blocks have room for the bytes, and are new.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), start, bytes.len()) };
        Self { start, length: bytes.len(), owner: Arc::new(blocks) }
    }

    pub(super) fn of(mut bytes: Vec<u8>) -> Self {
        Self { start: bytes.as_mut_ptr(), length: bytes.len(), owner: Arc::new(bytes) }
    }

    /// The bytes of `owner`, where they are.
    pub(super) fn of_owner<O>(owner: O) -> Self
    where
        O: AsRef<[u8]> + Send + Sync + 'static,
    {
        // Boxed first: a container that holds its bytes inline must not move afterwards.
        let owner = Arc::new(owner);
        let bytes: &[u8] = (*owner).as_ref();
        Self { start: bytes.as_ptr().cast_mut(), length: bytes.len(), owner }
    }

    /// The file's bytes, read.
    pub(super) fn read(file: &mut File) -> Result<Self> {
        let length = file.metadata()?.len();
        let length =
            usize::try_from(length).map_err(|_| Error::invalid("the file is too large"))?;
        let mut map = MmapMut::map_anon(length.max(1))?;
        std::io::Read::read_exact(file, &mut map[..length])?;
        Ok(Self { start: map.as_mut_ptr(), length, owner: Arc::new(map) })
    }

    /// The file's bytes where they are; what is written goes to copies of pages.
    ///
    /// # Safety
    /// The file is not changed or truncated while the memory is used.
    pub(super) unsafe fn map(file: &File) -> Result<Self> {
        // Without room in swap, as hardly a page is ever written: else the system refuses to map
        // what is larger than its memory.
        // SAFETY: by the contract of this function.
        let mut map = unsafe { MmapOptions::new().no_reserve_swap().map_copy(file)? };
        Ok(Self { start: map.as_mut_ptr(), length: map.len(), owner: Arc::new(map) })
    }

    /// # Safety
    /// Nobody writes it meanwhile.
    pub(super) unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: valid while we hold the owner; not written, by the contract of this function.
        unsafe { slice::from_raw_parts(self.start, self.length) }
    }

    pub(super) fn length(&self) -> usize {
        self.length
    }

    /// A part of it; `None` past the end.
    pub(super) fn part(&self, offset: u64, length: u64) -> Option<Self> {
        let end = offset.checked_add(length)?;
        if end > self.length as u64 {
            return None;
        }
        let start = self.start.wrapping_add(offset as usize);
        Some(Self { start, length: length as usize, owner: self.owner.clone() })
    }

    /// As a file for IREE, which keeps the memory.
    pub(super) fn file(self) -> Result<FileHandle> {
        let span = sys::iree_byte_span_t { data: self.start, data_length: self.length };
        let owner = Box::into_raw(Box::new(self.owner));
        let release = sys::iree_io_file_handle_release_callback_t {
            fn_: Some(release),
            user_data: owner.cast(),
        };
        let mut raw = ptr::null_mut();
        // SAFETY: the memory is valid until its owner is dropped, which the release does.
        let wrapped = check(unsafe {
            sys::iree_io_file_handle_wrap_host_allocation(
                sys::IREE_IO_FILE_ACCESS_READ,
                span,
                release,
                host_allocator(),
                &mut raw,
            )
        });
        wrapped.map(|()| FileHandle(raw)).inspect_err(|_| {
            // SAFETY: not wrapped, so that the box is still ours.
            drop(unsafe { Box::from_raw(owner) });
        })
    }
}

/// A reference to a file of IREE.
pub(super) struct FileHandle(*mut sys::iree_io_file_handle_t);

impl FileHandle {
    pub(super) fn raw(&self) -> *mut sys::iree_io_file_handle_t {
        self.0
    }
}

impl Drop for FileHandle {
    fn drop(&mut self) {
        // SAFETY: a reference of ours, not used again.
        unsafe { sys::iree_io_file_handle_release(self.0) };
    }
}

unsafe extern "C" fn release(owner: *mut c_void, _: sys::iree_io_file_handle_primitive_t) {
    // SAFETY: the box that `Memory::file` made; IREE calls back once.
    catch_quietly(|| drop(unsafe { Box::from_raw(owner.cast::<Arc<dyn Any + Send + Sync>>()) }));
}

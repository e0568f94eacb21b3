//! The host allocator: IREE's control function over Rust's global allocator.
//!
//! IREE leaves the system allocator to the application. With the feature `allocation-hooks`, which
//! is for tests, ours counts what is live, so that they can show that nothing leaks, and can be told
//! to fail, so that they can show that every failure is survived.

#[cfg(any(test, feature = "allocation-hooks"))]
mod hooks;

use std::alloc::{self, Layout};
use std::ffi::c_void;
use std::ptr;

use crate::*;
use hooks::{count, fails_now};

#[cfg(any(test, feature = "allocation-hooks"))]
pub use hooks::{Usage, fail_after, failure_pending, usage};

/// Nothing counts and nothing fails in programs.
#[cfg(not(any(test, feature = "allocation-hooks")))]
mod hooks {
    #[inline(always)]
    pub(super) fn count(_bytes: isize, _blocks: isize, _allocations: usize) {}

    #[inline(always)]
    pub(super) fn fails_now() -> bool {
        false
    }
}

/// Space before each block that remembers its size; keeps the block's alignment.
const HEADER: usize = 16;
/// Alignment of every block, bytes (`iree_max_align_t`).
const ALIGN: usize = 16;

/// Counts a block of `size` bytes that the caller gets elsewhere, until it [dismisses](dismiss) it;
/// false when a test wants this one to fail: then there is to be none.
#[inline]
pub fn admit(size: usize) -> bool {
    let admitted = !fails_now();
    if admitted {
        count(size.cast_signed(), 1, 1);
    }
    admitted
}

/// What was [admitted](admit) is gone.
#[inline]
pub fn dismiss(size: usize) {
    count(-size.cast_signed(), -1, 0);
}

/// The allocator to pass to IREE. It has no state of its own and is valid for the whole process.
pub fn host_allocator() -> iree_allocator_t {
    iree_allocator_t { self_: ptr::null_mut(), ctl: Some(control) }
}

fn layout(size: usize) -> Option<Layout> {
    Layout::from_size_align(size.checked_add(HEADER)?, ALIGN).ok()
}

unsafe extern "C" fn control(
    _self: *mut c_void,
    command: iree_allocator_command_t,
    params: *const c_void,
    inout: *mut *mut c_void,
) -> iree_status_t {
    let code = match command {
        IREE_ALLOCATOR_COMMAND_FREE => {
            // SAFETY: IREE passes a block of ours, or null, that it gives up.
            unsafe { release(*inout) };
            IREE_STATUS_OK
        }
        IREE_ALLOCATOR_COMMAND_MALLOC
        | IREE_ALLOCATOR_COMMAND_CALLOC
        | IREE_ALLOCATOR_COMMAND_REALLOC => {
            // SAFETY: for these commands `params` is an iree_allocator_alloc_params_t.
            let size = unsafe { (*params.cast::<iree_allocator_alloc_params_t>()).byte_length };
            // SAFETY: `inout` is valid for reads and writes in every command.
            let old = unsafe { *inout };
            let new = if fails_now() {
                ptr::null_mut()
            } else if command == IREE_ALLOCATOR_COMMAND_REALLOC && !old.is_null() {
                // SAFETY: `old` is a live block of ours.
                unsafe { resize(old, size) }
            } else {
                allocate(size, command == IREE_ALLOCATOR_COMMAND_CALLOC)
            };
            if new.is_null() {
                IREE_STATUS_RESOURCE_EXHAUSTED
            } else {
                // SAFETY: as above.
                unsafe { *inout = new };
                IREE_STATUS_OK
            }
        }
        _ => IREE_STATUS_UNIMPLEMENTED,
    };
    iree_status_from_code(code)
}

fn allocate(size: usize, zeroed: bool) -> *mut c_void {
    let Some(layout) = layout(size) else { return ptr::null_mut() };
    // SAFETY: the layout is never empty, as it holds the header.
    let base = unsafe { if zeroed { alloc::alloc_zeroed(layout) } else { alloc::alloc(layout) } };
    if base.is_null() {
        return ptr::null_mut();
    }
    count(size.cast_signed(), 1, 1);
    // SAFETY: `base` is valid for HEADER bytes and more, and aligned to 16.
    unsafe { seal(base, size) }
}

/// # Safety
/// `block` is null or a live block of this allocator; it is not used again.
unsafe fn release(block: *mut c_void) {
    if block.is_null() {
        return;
    }
    // SAFETY: every block is preceded by its header, and was made with this layout.
    unsafe {
        let base = block.cast::<u8>().sub(HEADER);
        let size = base.cast::<usize>().read();
        count(-size.cast_signed(), -1, 0);
        alloc::dealloc(base, Layout::from_size_align_unchecked(size + HEADER, ALIGN));
    }
}

/// # Safety
/// `block` is a live block of this allocator; if the result is not null, it is used instead.
unsafe fn resize(block: *mut c_void, size: usize) -> *mut c_void {
    let Some(new) = layout(size) else { return ptr::null_mut() };
    // SAFETY: every block is preceded by its header, and was made with this layout.
    unsafe {
        let base = block.cast::<u8>().sub(HEADER);
        let old_size = base.cast::<usize>().read();
        let old = Layout::from_size_align_unchecked(old_size + HEADER, ALIGN);
        let base = alloc::realloc(base, old, new.size());
        if base.is_null() {
            return ptr::null_mut();
        }
        count(size.cast_signed() - old_size.cast_signed(), 0, 1);
        seal(base, size)
    }
}

/// Writes the header and returns the block behind it.
///
/// # Safety
/// `base` is valid for `HEADER` bytes and aligned to `ALIGN`.
unsafe fn seal(base: *mut u8, size: usize) -> *mut c_void {
    // SAFETY: by the contract of this function.
    unsafe {
        base.cast::<usize>().write(size);
        base.add(HEADER).cast()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// The counters are the process's; one test at a time looks at them.
    static ALONE: Mutex<()> = Mutex::new(());

    fn ask(
        command: iree_allocator_command_t,
        size: usize,
        block: &mut *mut c_void,
    ) -> iree_status_code_t {
        let params = iree_allocator_alloc_params_t { byte_length: size };
        // SAFETY: `block` is null or came from an earlier call.
        iree_status_code(unsafe {
            control(ptr::null_mut(), command, (&raw const params).cast(), block)
        })
    }

    #[test]
    fn blocks_are_aligned_zeroed_grown_and_counted() {
        let _alone = ALONE.lock();
        let before = usage();
        let mut block = ptr::null_mut();
        assert_eq!(ask(IREE_ALLOCATOR_COMMAND_CALLOC, 100, &mut block), IREE_STATUS_OK);
        assert_eq!(block as usize % 16, 0);
        // SAFETY: the block has 100 bytes, all zero.
        let bytes = unsafe { std::slice::from_raw_parts_mut(block.cast::<u8>(), 100) };
        assert!(bytes.iter().all(|&b| b == 0));
        bytes.fill(7);
        assert_eq!(ask(IREE_ALLOCATOR_COMMAND_REALLOC, 5000, &mut block), IREE_STATUS_OK);
        assert_eq!(usage().bytes - before.bytes, 5000);
        assert_eq!(usage().blocks - before.blocks, 1);
        // SAFETY: realloc keeps the first 100 bytes.
        let bytes = unsafe { std::slice::from_raw_parts(block.cast::<u8>(), 100) };
        assert!(bytes.iter().all(|&b| b == 7));
        ask(IREE_ALLOCATOR_COMMAND_FREE, 0, &mut block);
        assert_eq!((usage().bytes, usage().blocks), (before.bytes, before.blocks));
    }

    #[test]
    fn a_chosen_allocation_fails_once() {
        let _alone = ALONE.lock();
        let mut blocks = [ptr::null_mut(); 4];
        fail_after(Some(2));
        let codes: Vec<_> =
            blocks.iter_mut().map(|block| ask(IREE_ALLOCATOR_COMMAND_MALLOC, 8, block)).collect();
        let failed = IREE_STATUS_RESOURCE_EXHAUSTED;
        assert_eq!(codes, [IREE_STATUS_OK, IREE_STATUS_OK, failed, IREE_STATUS_OK]);
        assert!(!failure_pending());
        for block in &mut blocks {
            ask(IREE_ALLOCATOR_COMMAND_FREE, 0, block);
        }
    }

    #[test]
    fn an_impossible_size_is_exhaustion() {
        let _alone = ALONE.lock();
        let mut block = ptr::null_mut();
        let code = ask(IREE_ALLOCATOR_COMMAND_MALLOC, usize::MAX - 4, &mut block);
        assert_eq!(code, IREE_STATUS_RESOURCE_EXHAUSTED);
        assert!(block.is_null());
    }
}

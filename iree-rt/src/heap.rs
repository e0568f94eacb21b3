//! Memory for the buffers of the CPU devices: large blocks are kept for the next call.
//!
//! A call takes a block for temporaries, and gives it back, several times. The C library returns
//! large blocks to the kernel, so that each time new pages would be mapped and zeroed: 40% of the
//! time of a prompt of 256 tokens behind 2048 others (1B model, two cores).

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use iree_sys as sys;
use iree_sys::allocator::host_allocator;

/// Bytes from which on blocks are kept; the C library keeps smaller ones itself.
const LARGE: usize = 1 << 20;
/// Bytes above which they are not: such a block is hardly for one call.
const HUGE: usize = 1 << 30;
/// Blocks that are kept at most; calls of several sessions may run at the same time.
const MOST: usize = 4;
/// Large blocks asked for or given back after which one that was not wanted again is freed.
const LATELY: u64 = 1024;
/// Bytes at the start of a kept block that are zeroed when it is used again. IREE asks for zeroed
/// memory wherever it asks for aligned memory, even for what no program reads before it writes:
/// large blocks are slabs of temporaries and buffers, which may begin with a structure of IREE's.
const START: usize = 64 << 10;
/// Space before each block, for its [`capacity`](Kept::capacity); keeps the host's alignment.
const HEADER: usize = 16;

/// The allocator of a device and its buffers; valid for the whole process.
pub(crate) fn allocator() -> sys::iree_allocator_t {
    sys::iree_allocator_t { self_: ptr::null_mut(), ctl: Some(control) }
}

/// Frees what is kept.
pub(crate) fn trim() {
    let kept = POOL.lock().unwrap_or_else(PoisonError::into_inner).kept.split_off(0);
    kept.into_iter().for_each(Kept::free);
}

/// A block that nobody uses.
struct Kept {
    base: *mut c_void,
    /// Bytes of the host's block: a power of two, of which the kernel provides only pages that
    /// were used. 0 in the header of a block that is not to be kept.
    capacity: usize,
    since: u64,
}

// SAFETY: the block belongs to whoever has this.
unsafe impl Send for Kept {}

impl Kept {
    fn free(self) {
        free(self.base);
    }
}

struct Pool {
    kept: Vec<Kept>,
    /// Counts large blocks asked for or given back.
    now: u64,
}

/// Calls do not wait for it: who finds it locked does without.
static POOL: Mutex<Pool> = Mutex::new(Pool { kept: Vec::new(), now: 0 });

/// Blocks of any size in use: a device is one. With the last one all that is kept is freed.
static LIVE: AtomicUsize = AtomicUsize::new(0);

fn pool() -> Option<MutexGuard<'static, Pool>> {
    match POOL.try_lock() {
        Ok(pool) => Some(pool),
        Err(TryLockError::Poisoned(pool)) => Some(pool.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

impl Pool {
    /// A kept block of `capacity` bytes or not much more.
    fn take(&mut self, capacity: usize) -> Option<Kept> {
        self.now += 1;
        let fits = |kept: &Kept| (capacity..=2 * capacity).contains(&kept.capacity);
        let fitting = self.kept.iter().enumerate().filter(|(_, kept)| fits(kept));
        let best = fitting.min_by_key(|(_, kept)| kept.capacity)?.0;
        Some(self.kept.swap_remove(best))
    }

    /// Keeps a block, and gives those that are not worth keeping any more.
    fn keep(&mut self, base: *mut c_void, capacity: usize) -> Vec<Kept> {
        self.now += 1;
        let now = self.now;
        self.kept.push(Kept { base, capacity, since: now });
        // The oldest is first among equals, and goes when there are too many.
        self.kept.sort_by_key(|kept| kept.since);
        let too_many = self.kept.len().saturating_sub(MOST);
        let old = self.kept.iter().filter(|kept| now - kept.since > LATELY).count();
        self.kept.drain(..too_many.max(old)).collect()
    }
}

unsafe extern "C" fn control(
    _self: *mut c_void,
    command: sys::iree_allocator_command_t,
    params: *const c_void,
    inout: *mut *mut c_void,
) -> sys::iree_status_t {
    match command {
        sys::IREE_ALLOCATOR_COMMAND_FREE => {
            // SAFETY: IREE passes a block of ours, or null, that it gives up.
            unsafe { give_back(*inout) };
            ptr::null_mut()
        }
        sys::IREE_ALLOCATOR_COMMAND_MALLOC | sys::IREE_ALLOCATOR_COMMAND_CALLOC => {
            // SAFETY: for these commands `params` is an iree_allocator_alloc_params_t.
            let size =
                unsafe { (*params.cast::<sys::iree_allocator_alloc_params_t>()).byte_length };
            let mut base = ptr::null_mut();
            // SAFETY: `base` is a valid place for the host's block, of which all bytes are ours.
            unsafe {
                let status = allocate(command, size, &mut base);
                if !base.is_null() {
                    *inout = base.cast::<u8>().add(HEADER).cast();
                    LIVE.fetch_add(1, Ordering::Relaxed);
                }
                status
            }
        }
        sys::IREE_ALLOCATOR_COMMAND_REALLOC => {
            // SAFETY: as above, and `inout` is a live block of ours, or null.
            unsafe {
                let size = (*params.cast::<sys::iree_allocator_alloc_params_t>()).byte_length;
                resize(size, &mut *inout)
            }
        }
        _ => sys::iree_status_from_code(sys::IREE_STATUS_UNIMPLEMENTED),
    }
}

/// Puts a block of the host with a header and `size` bytes behind it into `base`.
///
/// # Safety
/// `command` is one that allocates.
unsafe fn allocate(
    command: sys::iree_allocator_command_t,
    size: usize,
    base: &mut *mut c_void,
) -> sys::iree_status_t {
    let exhausted = || sys::iree_status_from_code(sys::IREE_STATUS_RESOURCE_EXHAUSTED);
    let Some(whole) = size.checked_add(HEADER) else { return exhausted() };
    let kept = (LARGE..=HUGE).contains(&whole);
    let capacity = if kept { whole.next_power_of_two() } else { 0 };
    let taken = if kept { pool().and_then(|mut pool| pool.take(capacity)) } else { None };
    if let Some(kept) = taken {
        *base = kept.base;
        if command == sys::IREE_ALLOCATOR_COMMAND_CALLOC {
            // SAFETY: the block is at least as large.
            unsafe { base.cast::<u8>().add(HEADER).write_bytes(0, size.min(START)) };
        }
        return ptr::null_mut();
    }
    let params = sys::iree_allocator_alloc_params_t { byte_length: whole.max(capacity) };
    // SAFETY: as the host's allocator wants it; the header is within the block.
    unsafe {
        let status = ask(command, (&raw const params).cast(), base);
        if !base.is_null() {
            base.cast::<usize>().write(capacity);
        }
        status
    }
}

/// # Safety
/// `block` holds null or a live block of this allocator; what it holds then is used instead.
unsafe fn resize(size: usize, block: &mut *mut c_void) -> sys::iree_status_t {
    let params = sys::iree_allocator_alloc_params_t { byte_length: size };
    let mut new = ptr::null_mut();
    // SAFETY: blocks are as large as they were asked for, or as their header says.
    unsafe {
        let malloc = sys::IREE_ALLOCATOR_COMMAND_MALLOC;
        if block.is_null() {
            return control(ptr::null_mut(), malloc, (&raw const params).cast(), block);
        }
        let mut base: *mut c_void = block.cast::<u8>().sub(HEADER).cast();
        let capacity = base.cast::<usize>().read();
        if capacity == 0 {
            let whole = size.saturating_add(HEADER);
            let params = sys::iree_allocator_alloc_params_t { byte_length: whole };
            let realloc = sys::IREE_ALLOCATOR_COMMAND_REALLOC;
            let status = ask(realloc, (&raw const params).cast(), &mut base);
            *block = base.cast::<u8>().add(HEADER).cast();
            return status;
        }
        let status = control(ptr::null_mut(), malloc, (&raw const params).cast(), &mut new);
        if !new.is_null() {
            let bytes = size.min(capacity - HEADER);
            ptr::copy_nonoverlapping(block.cast::<u8>(), new.cast(), bytes);
            give_back(*block);
            *block = new;
        }
        status
    }
}

/// # Safety
/// `block` is null or a live block of this allocator; it is not used again.
unsafe fn give_back(block: *mut c_void) {
    if block.is_null() {
        return;
    }
    // SAFETY: every block is preceded by its header.
    let (base, capacity) = unsafe {
        let base: *mut c_void = block.cast::<u8>().sub(HEADER).cast();
        (base, base.cast::<usize>().read())
    };
    let pool = if capacity == 0 { None } else { pool() };
    match pool.map(|mut pool| pool.keep(base, capacity)) {
        Some(old) => old.into_iter().for_each(Kept::free),
        None => free(base),
    }
    // What others have kept before they counted down is seen by who comes to zero.
    if LIVE.fetch_sub(1, Ordering::AcqRel) == 1 {
        trim();
    }
}

fn free(mut base: *mut c_void) {
    // SAFETY: a block of the host's that nobody uses.
    unsafe { ask(sys::IREE_ALLOCATOR_COMMAND_FREE, ptr::null(), &mut base) };
}

/// # Safety
/// As for `iree_allocator_t::ctl`.
unsafe fn ask(
    command: sys::iree_allocator_command_t,
    params: *const c_void,
    inout: &mut *mut c_void,
) -> sys::iree_status_t {
    let host = host_allocator();
    let control = host.ctl.expect("the host's allocator has a control function");
    // SAFETY: by the contract of this function.
    unsafe { control(host.self_, command, params, inout) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(size: usize) -> *mut c_void {
        let params = sys::iree_allocator_alloc_params_t { byte_length: size };
        let mut block = ptr::null_mut();
        let malloc = sys::IREE_ALLOCATOR_COMMAND_MALLOC;
        // SAFETY: parameters of the command, and a place for the block.
        unsafe { control(ptr::null_mut(), malloc, (&raw const params).cast(), &mut block) };
        // SAFETY: a new block has as many bytes.
        unsafe { block.cast::<u8>().write_bytes(7, size) };
        block
    }

    fn give(mut block: *mut c_void) {
        let free = sys::IREE_ALLOCATOR_COMMAND_FREE;
        // SAFETY: a block of this allocator, not used again.
        unsafe { control(ptr::null_mut(), free, ptr::null(), &mut block) };
    }

    fn kept() -> usize {
        pool().unwrap().kept.len()
    }

    /// One test, as the pool is the process's.
    #[test]
    fn large_blocks_are_kept_while_there_are_others() {
        let small = block(100);
        let large = block(3 << 20);
        give(large);
        assert_eq!(kept(), 1);
        assert_eq!(block(2 << 20), large, "the kept one is large enough");
        give(large);
        let larger = block(9 << 20);
        assert_ne!(larger, large);
        assert_eq!(kept(), 1);
        give(larger);

        let blocks: Vec<_> = (0..MOST + 2).map(|_| block(LARGE)).collect();
        blocks.into_iter().for_each(give);
        assert_eq!(kept(), MOST);
        trim();
        assert_eq!(kept(), 0);

        give(block(LARGE));
        assert_eq!(kept(), 1);
        for _ in 0..=LATELY {
            give(block(64 << 20));
        }
        assert_eq!(kept(), 1, "what was not wanted for long is freed");
        {
            // Another thread uses it at this moment: nobody waits, and nothing is kept.
            let locked = pool().unwrap();
            give(block(64 << 20));
            assert_eq!(locked.kept.len(), 1);
        }
        give(small);
        assert_eq!(kept(), 0, "nothing outlives the last block");
    }
}

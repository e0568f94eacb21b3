//! Memory for the buffers of the CPU devices: large blocks are mapped, and kept for the next call.
//!
//! A call takes a block for temporaries, and gives it back, several times. If each went back to the
//! kernel, new pages would be mapped and zeroed every time: 40% of the time of a prompt of 256 tokens
//! behind 2048 others (1B model, two cores). So a few are kept; the others, such as a KV cache that
//! was outgrown, do go back. From the C library they would not: it takes blocks of as many bytes as
//! some it was given back (up to 32 MiB) from its heap, which seldom shrinks.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use iree_sys as sys;
use iree_sys::allocator::{self, host_allocator};
use memmap2::MmapMut;

/// Bytes from which on blocks are mappings of their own; where the C library begins with it, too.
const LARGE: usize = 128 << 10;
/// Bytes of a mapping above which it is not kept: such a block is hardly for one call.
const HUGE: usize = 1 << 30;
/// Blocks that are kept at most; calls of several sessions may run at the same time.
const MOST: usize = 4;
/// Large blocks asked for or given back after which one that was not wanted again is freed.
const LATELY: u64 = 1024;
/// Large blocks asked for or given back while a block was in use, above which it is not kept: it was
/// not one call's.
const LONG: u64 = 32;
/// However many bytes there are.
const ALL: usize = usize::MAX;
/// Bytes that the structure at the start of a buffer has at most, with what aligns it.
const BUFFER: usize = 4096;
/// Blocks of fewer bytes are zeroed whole.
const WHOLE: usize = 1 << 20;
/// Space before each block, for the bytes of its mapping, 0 where it has none of its own, and when it
/// was asked for; keeps the host's alignment.
const HEADER: usize = 16;
/// Space at the start of a mapping: itself, then the header.
const FRONT: usize = 64;

const _: () = assert!(size_of::<MmapMut>() + HEADER <= FRONT);

/// The allocator of a device; valid for the whole process.
pub(crate) fn allocator() -> sys::iree_allocator_t {
    sys::iree_allocator_t { self_: ptr::null_mut(), ctl: Some(control::<ALL>) }
}

/// The allocator of buffers: of a kept block of 1 MiB and more that is asked for as zeroed, it zeroes
/// the structure of IREE's that a buffer begins with. What the buffer holds is
/// [unspecified](crate::Buffer::allocate), and IREE asks for zeroed memory wherever it asks for
/// aligned memory. Smaller blocks are zeroed whole: IREE takes what belongs to buffers and command
/// buffers from here too, structures of some hundred KiB at most.
///
/// (IREE can take structure and contents from two allocators, but frees the contents wrongly then.)
pub(crate) fn buffers() -> sys::iree_allocator_t {
    sys::iree_allocator_t { self_: ptr::null_mut(), ctl: Some(control::<BUFFER>) }
}

/// Frees what is kept.
pub(crate) fn trim() {
    let kept = POOL.lock().unwrap_or_else(PoisonError::into_inner).kept.split_off(0);
    kept.into_iter().for_each(|kept| unmap(kept.map));
}

/// A mapping that nobody uses. Its size is a power of two, of which the kernel provides only pages
/// that were used.
struct Kept {
    map: MmapMut,
    since: u64,
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
    /// A kept mapping of `bytes` bytes or not much more.
    fn take(&mut self, bytes: usize) -> Option<MmapMut> {
        let fits = |kept: &Kept| (bytes..=bytes.saturating_mul(2)).contains(&kept.map.len());
        let fitting = self.kept.iter().enumerate().filter(|(_, kept)| fits(kept));
        let best = fitting.min_by_key(|(_, kept)| kept.map.len())?.0;
        Some(self.kept.swap_remove(best).map)
    }

    /// Keeps a mapping that was in use since `born`, and gives those that are not worth keeping, or
    /// not any more.
    fn keep(&mut self, map: MmapMut, born: u64) -> Vec<Kept> {
        self.now += 1;
        let now = self.now;
        if map.len() > HUGE || now - born > LONG {
            return vec![Kept { map, since: born }];
        }
        self.kept.push(Kept { map, since: now });
        // The oldest is first among equals, and goes when there are too many.
        self.kept.sort_by_key(|kept| kept.since);
        let too_many = self.kept.len().saturating_sub(MOST);
        let old = self.kept.iter().filter(|kept| now - kept.since > LATELY).count();
        self.kept.drain(..too_many.max(old)).collect()
    }
}

/// Of memory that is asked for as zeroed, at least the first `ZERO` bytes are.
unsafe extern "C" fn control<const ZERO: usize>(
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
            // SAFETY: for these commands `params` is an iree_allocator_alloc_params_t, and `inout`
            // a place for the block.
            unsafe {
                let size = (*params.cast::<sys::iree_allocator_alloc_params_t>()).byte_length;
                allocate::<ZERO>(command, size, &mut *inout)
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

/// Puts a block of `size` bytes into `block`.
///
/// # Safety
/// `command` is one that allocates.
unsafe fn allocate<const ZERO: usize>(
    command: sys::iree_allocator_command_t,
    size: usize,
    block: &mut *mut c_void,
) -> sys::iree_status_t {
    if size >= LARGE {
        let zeroed = match command {
            sys::IREE_ALLOCATOR_COMMAND_CALLOC if size < WHOLE => size,
            sys::IREE_ALLOCATOR_COMMAND_CALLOC => ZERO,
            _ => 0,
        };
        let Some((map, born)) = map(size, zeroed) else {
            return sys::iree_status_from_code(sys::IREE_STATUS_RESOURCE_EXHAUSTED);
        };
        *block = seal(map, born);
        LIVE.fetch_add(1, Ordering::Relaxed);
        return ptr::null_mut();
    }
    let params = sys::iree_allocator_alloc_params_t { byte_length: size + HEADER };
    let mut base = ptr::null_mut();
    // SAFETY: as the host's allocator wants it; the header is within the block.
    unsafe {
        let status = ask(command, (&raw const params).cast(), &mut base);
        if !base.is_null() {
            base.cast::<usize>().write(0);
            *block = base.cast::<u8>().add(HEADER).cast();
            LIVE.fetch_add(1, Ordering::Relaxed);
        }
        status
    }
}

/// Memory for a block of `size` bytes, kept or of the kernel, which has zeroed it; and when that was.
/// Of what was kept, up to `zeroed` bytes are zeroed again.
fn map(size: usize, zeroed: usize) -> Option<(MmapMut, u64)> {
    let whole = size.checked_add(FRONT)?;
    let bytes = if whole <= HUGE { whole.next_power_of_two() } else { whole };
    let (kept, born) = pool().map_or((None, 0), |mut pool| {
        pool.now += 1;
        (pool.take(bytes), pool.now)
    });
    if let Some(mut map) = kept {
        map[FRONT..][..size.min(zeroed)].fill(0);
        return Some((map, born));
    }
    if !allocator::admit(bytes) {
        return None;
    }
    let map = MmapMut::map_anon(bytes).or_else(|_| {
        trim();
        MmapMut::map_anon(bytes)
    });
    let map = map.ok();
    if map.is_none() {
        allocator::dismiss(bytes);
    }
    map.map(|map| (map, born))
}

fn unmap(map: MmapMut) {
    allocator::dismiss(map.len());
}

/// The block in a mapping, which it keeps itself.
fn seal(mut map: MmapMut, born: u64) -> *mut c_void {
    let (base, bytes) = (map.as_mut_ptr(), map.len());
    // SAFETY: a mapping is larger than its front and aligned to a page.
    unsafe {
        base.cast::<MmapMut>().write(map);
        base.add(FRONT - HEADER).cast::<usize>().write(bytes);
        base.add(FRONT - HEADER / 2).cast::<u64>().write(born);
        base.add(FRONT).cast()
    }
}

/// Bytes of a block's mapping; 0 where it is none of its own.
///
/// # Safety
/// `block` is a live block of this allocator.
unsafe fn mapped(block: *mut c_void) -> usize {
    // SAFETY: every block is preceded by its header.
    unsafe { block.cast::<u8>().sub(HEADER).cast::<usize>().read() }
}

/// # Safety
/// `block` holds null or a live block of this allocator; what it holds then is used instead.
unsafe fn resize(size: usize, block: &mut *mut c_void) -> sys::iree_status_t {
    // SAFETY: blocks are as large as they were asked for, or as their mapping says.
    unsafe {
        if block.is_null() {
            return allocate::<0>(sys::IREE_ALLOCATOR_COMMAND_MALLOC, size, block);
        }
        let bytes = mapped(*block);
        if bytes == 0 {
            // One that grows beyond `LARGE` stays with the C library, which moves it cheaply.
            let mut base: *mut c_void = block.cast::<u8>().sub(HEADER).cast();
            let whole = size.saturating_add(HEADER);
            let params = sys::iree_allocator_alloc_params_t { byte_length: whole };
            let realloc = sys::IREE_ALLOCATOR_COMMAND_REALLOC;
            let status = ask(realloc, (&raw const params).cast(), &mut base);
            *block = base.cast::<u8>().add(HEADER).cast();
            return status;
        }
        let mut new = ptr::null_mut();
        let status = allocate::<0>(sys::IREE_ALLOCATOR_COMMAND_MALLOC, size, &mut new);
        if !new.is_null() {
            ptr::copy_nonoverlapping(block.cast::<u8>(), new.cast(), size.min(bytes - FRONT));
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
    // SAFETY: every block is preceded by its header, and one that is mapped by its mapping.
    unsafe {
        let base = block.cast::<u8>();
        if mapped(block) > 0 {
            let map = base.sub(FRONT).cast::<MmapMut>().read();
            let born = base.sub(HEADER / 2).cast::<u64>().read();
            match pool() {
                Some(mut pool) => {
                    let old = pool.keep(map, born);
                    drop(pool);
                    old.into_iter().for_each(|kept| unmap(kept.map));
                }
                None => unmap(map),
            }
        } else {
            let mut base = base.sub(HEADER).cast();
            ask(sys::IREE_ALLOCATOR_COMMAND_FREE, ptr::null(), &mut base);
        }
    }
    // What others have kept before they counted down is seen by who comes to zero.
    if LIVE.fetch_sub(1, Ordering::AcqRel) == 1 {
        trim();
    }
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

/// Held by tests that look at the pool, and by those of this crate's own that use it beside them.
#[cfg(test)]
pub(crate) static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

#[cfg(test)]
mod tests {
    use super::*;

    type Control = unsafe extern "C" fn(
        *mut c_void,
        sys::iree_allocator_command_t,
        *const c_void,
        *mut *mut c_void,
    ) -> sys::iree_status_t;

    fn block(size: usize) -> *mut c_void {
        let params = sys::iree_allocator_alloc_params_t { byte_length: size };
        let mut block = ptr::null_mut();
        let malloc = sys::IREE_ALLOCATOR_COMMAND_MALLOC;
        // SAFETY: parameters of the command, and a place for the block.
        unsafe { control::<ALL>(ptr::null_mut(), malloc, (&raw const params).cast(), &mut block) };
        // SAFETY: a new block has as many bytes.
        unsafe { block.cast::<u8>().write_bytes(7, size) };
        block
    }

    fn give(mut block: *mut c_void) {
        let free = sys::IREE_ALLOCATOR_COMMAND_FREE;
        // SAFETY: a block of this allocator, not used again.
        unsafe { control::<ALL>(ptr::null_mut(), free, ptr::null(), &mut block) };
    }

    /// Bytes of physical memory that the process holds.
    fn resident() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
    }

    fn kept() -> usize {
        pool().unwrap().kept.len()
    }

    /// One test, as the pool is the process's.
    #[test]
    fn large_blocks_are_kept_while_there_are_others() {
        let _alone = ALONE.lock();
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

        let (long, short) = (block(8 << 20), block(LARGE));
        give(short);
        assert_eq!(kept(), 1);
        for _ in 0..LONG / 2 {
            give(block(8 << 20));
        }
        assert_eq!(kept(), 2);
        give(long);
        assert_eq!(kept(), 2, "what was in use for long is freed");
        trim();

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

        if cfg!(target_os = "linux") {
            let (before, bytes) = (resident(), 24 << 20);
            let blocks: Vec<_> = (0..2 * MOST).map(|_| block(bytes)).collect();
            let held = resident();
            // The kernel counts a little behind.
            let more = held.saturating_sub(before);
            assert!(more >= 2 * MOST * bytes / 10 * 9, "{more} bytes for them");
            blocks.into_iter().for_each(give);
            let left = resident().saturating_sub(before);
            assert!(left < bytes, "{left} bytes did not go back to the kernel");
        }

        let mut grown = block(LARGE);
        for size in [3 * LARGE, HUGE + 1, 2 * LARGE, 100] {
            let params = sys::iree_allocator_alloc_params_t { byte_length: size };
            let realloc = sys::IREE_ALLOCATOR_COMMAND_REALLOC;
            // SAFETY: parameters of the command, and a block of this allocator.
            unsafe {
                control::<ALL>(ptr::null_mut(), realloc, (&raw const params).cast(), &mut grown);
                let bytes = std::slice::from_raw_parts(grown.cast::<u8>(), 100);
                assert!(bytes.iter().all(|&byte| byte == 7), "{size} bytes: it was moved");
            }
        }
        give(grown);

        // What is used again is as zeroed as what is new; of large buffers, where they begin.
        let other = block(1);
        for (size, control, zeroed) in [
            (LARGE, control::<ALL> as Control, LARGE),
            (WHOLE - FRONT, control::<ALL>, WHOLE - FRONT),
            (5 << 20, control::<ALL>, 5 << 20),
            (WHOLE - FRONT, control::<BUFFER>, WHOLE - FRONT),
            (5 << 20, control::<BUFFER>, BUFFER),
        ] {
            let first = block(size);
            give(first);
            let params = sys::iree_allocator_alloc_params_t { byte_length: size };
            let (calloc, mut again) = (sys::IREE_ALLOCATOR_COMMAND_CALLOC, ptr::null_mut());
            let params = (&raw const params).cast();
            // SAFETY: parameters of the command, and a place for the block.
            unsafe { control(ptr::null_mut(), calloc, params, &mut again) };
            // SAFETY: a new block has as many bytes, all written before.
            let bytes = unsafe { std::slice::from_raw_parts(again.cast::<u8>(), zeroed) };
            assert!(bytes.iter().all(|&byte| byte == 0), "{zeroed} of {size} bytes");
            assert_eq!(again, first, "it was kept");
            give(again);
        }
        give(other);

        let mut none = ptr::null_mut();
        for size in [usize::MAX, usize::MAX / 2] {
            let params = sys::iree_allocator_alloc_params_t { byte_length: size };
            let malloc = sys::IREE_ALLOCATOR_COMMAND_MALLOC;
            // SAFETY: parameters of the command, and a place for the block.
            let status = unsafe {
                control::<ALL>(ptr::null_mut(), malloc, (&raw const params).cast(), &mut none)
            };
            assert_eq!(sys::iree_status_code(status), sys::IREE_STATUS_RESOURCE_EXHAUSTED);
            assert!(none.is_null());
        }
    }
}

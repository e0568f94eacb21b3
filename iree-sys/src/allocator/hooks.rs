//! What tests see of the allocator, and do to it.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicIsize, AtomicUsize, Ordering::Relaxed};

/// Off until somebody asks: counters that all threads share cost a tenth of a small call.
static COUNTING: AtomicBool = AtomicBool::new(false);
static LIVE_BYTES: AtomicIsize = AtomicIsize::new(0);
static LIVE_BLOCKS: AtomicIsize = AtomicIsize::new(0);
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
/// Allocations that still succeed before one fails; negative: none is to fail.
static FAIL_AFTER: AtomicI64 = AtomicI64::new(-1);

/// What the host allocator has given out and not got back since counting began, less than nothing
/// if it got back more, and how often it was asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Bytes, as requested (headers not counted); of blocks that `iree-rt` maps, those of the mapping.
    pub bytes: isize,
    /// Blocks.
    pub blocks: isize,
    /// Successful allocations and reallocations.
    pub allocations: usize,
}

/// The counters of the process's host allocator, which count from the first call of this on.
pub fn usage() -> Usage {
    COUNTING.store(true, Relaxed);
    Usage {
        bytes: LIVE_BYTES.load(Relaxed),
        blocks: LIVE_BLOCKS.load(Relaxed),
        allocations: ALLOCATIONS.load(Relaxed),
    }
}

/// Makes one allocation fail after `n` more have succeeded; `None` cancels.
///
/// Counts every thread of the process; run such tests alone.
pub fn fail_after(n: Option<u32>) {
    FAIL_AFTER.store(n.map_or(-1, i64::from), Relaxed);
}

/// Whether the failure asked for with [`fail_after`] is still to come.
pub fn failure_pending() -> bool {
    FAIL_AFTER.load(Relaxed) >= 0
}

/// Whether the next allocation is the one to fail.
pub(super) fn fails_now() -> bool {
    if FAIL_AFTER.load(Relaxed) < 0 {
        return false;
    }
    FAIL_AFTER.fetch_sub(1, Relaxed) == 0
}

pub(super) fn count(bytes: isize, blocks: isize, allocations: usize) {
    if COUNTING.load(Relaxed) {
        LIVE_BYTES.fetch_add(bytes, Relaxed);
        LIVE_BLOCKS.fetch_add(blocks, Relaxed);
        ALLOCATIONS.fetch_add(allocations, Relaxed);
    }
}

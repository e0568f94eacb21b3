//! Whether ours helps tiles that wait for memory, which x86's makers do not agree on: AMD's prefetching is the faster one
//! without, Intel's with it.

use std::arch::x86_64::__cpuid;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// What [`helps`] says, in a place that can be read between two lines of weights.
static HELPS: AtomicBool = AtomicBool::new(false);

/// Whether tiles prefetch what they [wait](super::vector::Vector::WAITING) for.
///
/// Measured (Emerald Rapids): one row of int4 1.2 to 1.4 times as fast with it, of int8, bf16 and f32 1.2, compressed bf16 the
/// same; docs/measurements.md has more. For AMD's see the vectors.
#[inline(always)]
pub(super) fn helps() -> bool {
    HELPS.load(Relaxed)
}

/// Finds it out, before anything is multiplied.
pub(super) fn find_out() {
    static INTEL: LazyLock<bool> = LazyLock::new(|| {
        #[allow(
            unused_unsafe,
            reason = "newer compilers than the oldest that is supported have it safe"
        )]
        // SAFETY: every x86-64 has the instruction, which reads no memory.
        let vendor = unsafe { __cpuid(0) };
        [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).concat() == b"GenuineIntel"
    });
    HELPS.store(*INTEL, Relaxed);
}

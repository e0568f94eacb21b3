//! Tiles, the registers of AMX: eight of up to sixteen rows of 64 bytes, of which one instruction
//! multiplies two and adds the products to a third.
//!
//! The compiler knows nothing of them. They belong to [`with_tiles`]: between its beginning and its end
//! nothing else on the thread has instructions for them.

use std::arch::asm;
use std::arch::x86_64::__cpuid_count;
use std::sync::LazyLock;

use super::avx512_bf16;

/// Rows of the largest tile, and bytes of its rows.
pub(super) const ROWS: usize = 16;
pub(super) const ROW: usize = 64;

/// Bytes of the largest tile.
pub(super) const TILE: usize = ROWS * ROW;

/// Whether this CPU has tiles of bytes and of bfloat16, and the system lets this process use them, which
/// has to be asked once.
pub(super) fn detected() -> bool {
    static DETECTED: LazyLock<bool> = LazyLock::new(|| {
        // AMX-BF16, AMX-TILE and AMX-INT8 in leaf 7 (Intel's manual, volume 2A, CPUID).
        const TILES: u32 = 1 << 22 | 1 << 24 | 1 << 25;
        #[allow(
            unused_unsafe,
            reason = "newer compilers than the oldest that is supported have it safe"
        )]
        // SAFETY: every x86-64 has this leaf's instruction, which reads no memory.
        let features = unsafe { __cpuid_count(7, 0) };
        avx512_bf16::detected() && features.edx & TILES == TILES && permitted()
    });
    *DETECTED
}

/// Asks Linux for the state of tiles (Documentation/arch/x86/xstate.rst).
#[cfg(target_os = "linux")]
fn permitted() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: no memory is touched; from now on this process may use tiles, and the system wants alternate
    // stacks for signals (`sigaltstack`) to have room for them, or refuses here if one has not.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

#[cfg(not(target_os = "linux"))]
fn permitted() -> bool {
    false
}

/// How large tiles are (palette 1, Intel's manual, volume 1, chapter 18).
#[repr(C, align(64))]
struct Shapes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Calls `work` with tiles 0 to 3 of `rows` rows of sixteen sums, tiles 4 and 5 of as many rows of `depth`
/// bytes, and tiles 6 and 7 of what these meet: `depth / 4` rows of four bytes for each of sixteen sums.
///
/// # Safety
///
/// The CPU has them ([`detected`]), at most [`ROWS`] rows are asked for, and at most [`ROW`] bytes, a
/// multiple of four; `work` does not come here again.
#[inline(always)]
pub(super) unsafe fn with_tiles(rows: usize, depth: usize, work: impl FnOnce()) {
    let mut shapes =
        Shapes { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
    for tile in 0..8 {
        (shapes.rows[tile], shapes.row_bytes[tile]) = match tile {
            0..4 => (rows as u8, ROW as u16),
            4..6 => (rows as u8, depth as u16),
            _ => ((depth / 4) as u8, ROW as u16),
        };
    }
    // SAFETY: the caller's promise; the shapes are ones that tiles can have.
    unsafe {
        asm!("ldtilecfg [{}]", in(reg) &raw const shapes, options(nostack, preserves_flags));
        work();
        asm!("tilerelease", options(nostack, preserves_flags));
    }
}

/// Reads tile `T`, whose rows are `stride` bytes apart.
///
/// # Safety
///
/// In [`with_tiles`]; the rows are there.
#[inline(always)]
pub(super) unsafe fn load<const T: usize>(from: *const u8, stride: usize) {
    // SAFETY: the caller's promise.
    unsafe { load_at::<T, 0>(from, stride) }
}

/// As [`load`], `AT` bytes behind `from`: that takes no register.
///
/// # Safety
///
/// As for [`load`].
#[inline(always)]
pub(super) unsafe fn load_at<const T: usize, const AT: usize>(from: *const u8, stride: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "tileloadd tmm{tile}, [{from} + {stride} + {at}]", tile = const T, from = in(reg) from,
            stride = in(reg) stride, at = const AT, options(readonly, nostack, preserves_flags),
        );
    }
}

/// Writes tile `T`, as [`load`] reads it.
///
/// # Safety
///
/// As for [`load`], and nothing else accesses them.
#[inline(always)]
pub(super) unsafe fn store<const T: usize>(to: *mut u8, stride: usize) {
    // SAFETY: the caller's promise.
    unsafe { store_at::<T, 0>(to, stride) }
}

/// As [`store`], `AT` bytes behind `to`.
///
/// # Safety
///
/// As for [`store`].
#[inline(always)]
pub(super) unsafe fn store_at<const T: usize, const AT: usize>(to: *mut u8, stride: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "tilestored [{to} + {stride} + {at}], tmm{tile}", tile = const T, to = in(reg) to,
            stride = in(reg) stride, at = const AT, options(nostack, preserves_flags),
        );
    }
}

/// Sets tile `T` to zero.
///
/// # Safety
///
/// In [`with_tiles`].
#[inline(always)]
pub(super) unsafe fn zero<const T: usize>() {
    // SAFETY: the caller's promise.
    unsafe { asm!("tilezero tmm{}", const T, options(nomem, nostack, preserves_flags)) }
}

/// Adds the products of pairs of bfloat16 in `X` and `W` to the f32 in `SUMS`. Those of even columns are
/// added up by themselves, and those of odd ones, and then both to what was there; subnormal numbers count
/// as zero.
///
/// # Safety
///
/// In [`with_tiles`].
#[inline(always)]
pub(super) unsafe fn add_bf16<const SUMS: usize, const X: usize, const W: usize>() {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "tdpbf16ps tmm{}, tmm{}, tmm{}", const SUMS, const X, const W,
            options(nomem, nostack, preserves_flags),
        );
    }
}

/// Adds the products of fours of i8 in `X` and `W` to the i32 in `SUMS`.
///
/// # Safety
///
/// In [`with_tiles`].
#[inline(always)]
pub(super) unsafe fn add_i8<const SUMS: usize, const X: usize, const W: usize>() {
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "tdpbssd tmm{}, tmm{}, tmm{}", const SUMS, const X, const W,
            options(nomem, nostack, preserves_flags),
        );
    }
}

//! Sixteen f32 as one register of AVX-512, and pairs of i16 with VNNI or without.

use std::arch::asm;
use std::arch::x86_64::*;

use super::tile::Cut;
use super::vector::{Job, Tile, Vector};
use super::{avx2, prefetching};

/// With the instructions of VNNI or without.
#[derive(Clone, Copy)]
pub(super) struct Avx512<const VNNI: bool>(pub __m512);

/// With what AVX2's kernels need, which have some of the formats.
pub(super) fn detected() -> bool {
    avx2::detected()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
}

pub(super) fn vnni_detected() -> bool {
    detected() && is_x86_feature_detected!("avx512vnni")
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn enter_with_vnni<V: Vector, J: Job<V>>(job: &J) {
    // SAFETY: the caller's promise.
    unsafe { job.run() }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn enter<V: Vector, J: Job<V>>(job: &J) {
    // SAFETY: the caller's promise.
    unsafe { job.run() }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn pin(mut register: __m512) -> __m512 {
    // SAFETY: there are no instructions.
    unsafe {
        asm!("/* {0} */", inout(zmm_reg) register, options(nostack, preserves_flags));
    }
    register
}

/// Two columns of sixteen elements of 16 bits, one after the other, as sixteen pairs.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn pairs(columns: __m512i) -> __m512i {
    // 0, 16, 1, 17, …
    const ORDER: [i16; 32] = {
        let mut order = [0; 32];
        let mut i = 0;
        while i < 32 {
            order[i] = (i / 2 + i % 2 * 16) as i16;
            i += 1;
        }
        order
    };
    // SAFETY: as many elements as a register has.
    let order = unsafe { _mm512_loadu_si512(ORDER.as_ptr().cast()) };
    _mm512_permutexvar_epi16(order, columns)
}

/// As `_mm512_dpwssd_epi32`, which LLVM takes apart again: into two instructions of less latency,
/// where only their number matters.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
fn add_products(mut sums: __m512i, pairs: __m512i, x: __m512i) -> __m512i {
    // SAFETY: one instruction on registers, which the caller's CPU has.
    unsafe {
        asm!(
            "vpdpwssd {0}, {1}, {2}", inout(zmm_reg) sums, in(zmm_reg) pairs, in(zmm_reg) x,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}

impl<const VNNI: bool> Vector for Avx512<VNNI> {
    type Integers = __m512i;
    const ROWS: usize = 8;
    /// Measured (Zen 4, one thread, with VNNI): one row 1.1 to 1.3 times as fast, two 1.03 to 1.26, but of Q4_K 0.93, four
    /// of eight bits and more 1.07 to 1.24, of fewer 0.87 to 0.94. Where memory is slow, by two threads, half of that.
    const WAITING: [usize; 4] = if VNNI { [4, 4, 8, 8] } else { [6, 8, 16, 16] };

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { _mm512_set1_ps(value) })
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { _mm512_loadu_ps(from) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { _mm512_storeu_ps(to, self.0) }
    }

    #[inline(always)]
    unsafe fn mul(self, by: Self) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { _mm512_mul_ps(self.0, by.0) })
    }

    #[inline(always)]
    unsafe fn mul_add(self, by: Self, plus: Self) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { _mm512_fmadd_ps(self.0, by.0, plus.0) })
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { _mm512_add_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { _mm512_max_ps(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        // SAFETY: the caller's promise.
        unsafe { _mm512_reduce_max_ps(self.0) }
    }

    #[inline(always)]
    unsafe fn power_of_two(self) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            let exponents = _mm512_slli_epi32::<23>(_mm512_castps_si512(self.0));
            Self(_mm512_castsi512_ps(_mm512_add_epi32(exponents, _mm512_set1_epi32(127 << 23))))
        }
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits)))
        }
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const u8) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) })
    }

    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast()))) })
    }

    #[inline(always)]
    fn is_helped() -> bool {
        prefetching::helps()
    }

    #[inline(always)]
    unsafe fn prefetch(at: *const u8) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }

    #[inline(always)]
    unsafe fn pin(self) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { pin(self.0) })
    }

    #[inline(always)]
    unsafe fn splat_i32(value: i32) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { _mm512_set1_epi32(value) }
    }

    #[inline(always)]
    unsafe fn pairs_i8(from: *const u8, odd: bool) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe {
            let words = _mm512_loadu_si512(from.cast());
            _mm512_srai_epi16::<8>(if odd { words } else { _mm512_slli_epi16::<8>(words) })
        }
    }

    #[inline(always)]
    unsafe fn bits(from: *const u8, shift: isize, mask: i32) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe {
            let words = _mm512_loadu_si512(from.cast());
            let by = _mm512_set1_epi32(shift.unsigned_abs() as i32);
            let shifted = match shift < 0 {
                true => _mm512_sllv_epi32(words, by),
                false => _mm512_srlv_epi32(words, by),
            };
            _mm512_and_si512(shifted, _mm512_set1_epi32(mask))
        }
    }

    #[inline(always)]
    unsafe fn load_i32(from: *const u8) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { _mm512_loadu_si512(from.cast()) }
    }

    #[inline(always)]
    unsafe fn store_i32(integers: __m512i, to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { _mm512_storeu_si512(to.cast(), integers) }
    }

    #[inline(always)]
    unsafe fn subtract_pairs(pairs: __m512i, other: __m512i) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { _mm512_sub_epi16(pairs, other) }
    }

    #[inline(always)]
    unsafe fn multiply_pairs(pairs: __m512i, by: __m512i) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe {
            // by & 0xffff | by << 16
            let low = _mm512_set1_epi32(0xffff);
            let both = _mm512_ternarylogic_epi32::<0xea>(by, low, _mm512_slli_epi32::<16>(by));
            _mm512_mullo_epi16(pairs, both)
        }
    }

    #[inline(always)]
    unsafe fn or(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { _mm512_or_si512(a, b) }
    }

    #[inline(always)]
    unsafe fn look_up(pairs: __m512i, table: &[u8; 16]) -> __m512i {
        // SAFETY: the caller's promise; the table is as long as the read.
        unsafe {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
            _mm512_and_si512(_mm512_shuffle_epi8(table, pairs), _mm512_set1_epi16(0xff))
        }
    }

    #[inline(always)]
    unsafe fn add_products(sums: __m512i, pairs: __m512i, x: __m512i) -> __m512i {
        // SAFETY: the caller's promise; with `VNNI` the CPU has it.
        unsafe {
            if VNNI {
                add_products(sums, pairs, x)
            } else {
                _mm512_add_epi32(sums, _mm512_madd_epi16(pairs, x))
            }
        }
    }

    #[inline(always)]
    unsafe fn from_i32(integers: __m512i) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { _mm512_cvtepi32_ps(integers) })
    }

    #[inline(always)]
    unsafe fn widen_i8(from: *const u8) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { _mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast())) }
    }

    #[inline(always)]
    unsafe fn add_i32(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { _mm512_add_epi32(a, b) }
    }

    #[inline(always)]
    unsafe fn multiply_i32(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { _mm512_mullo_epi32(a, b) }
    }

    #[inline(always)]
    unsafe fn pin_i32(integers: __m512i) -> __m512i {
        // SAFETY: the caller's promise.
        unsafe { _mm512_castps_si512(pin(_mm512_castsi512_ps(integers))) }
    }

    unsafe fn run_one<T: Tile<Self>>(tile: &T) {
        // SAFETY: the caller's promise.
        unsafe { Self::enter(&Cut::<_, 4, 1>(tile)) }
    }

    unsafe fn run<T: Tile<Self>>(rows: usize, tile: &T) {
        // SAFETY: the caller's promise.
        unsafe {
            match rows {
                1 => Self::run_one(tile),
                2 => Self::enter(&Cut::<_, 4, 2>(tile)),
                3 => Self::enter(&Cut::<_, 4, 3>(tile)),
                4 => Self::enter(&Cut::<_, 4, 4>(tile)),
                5 => Self::enter(&Cut::<_, 2, 5>(tile)),
                6 => Self::enter(&Cut::<_, 2, 6>(tile)),
                7 => Self::enter(&Cut::<_, 2, 7>(tile)),
                _ => Self::enter(&Cut::<_, 2, 8>(tile)),
            }
        }
    }

    unsafe fn enter<J: Job<Self>>(job: &J) {
        // SAFETY: the caller's promise.
        unsafe { if VNNI { enter_with_vnni(job) } else { enter(job) } }
    }
}

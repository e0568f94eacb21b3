//! Sixteen f32 as two registers of AVX2, with FMA and F16C, and pairs of i16 with AVX-VNNI or
//! without.

use std::arch::asm;
use std::arch::x86_64::*;

use super::prefetching;
use super::tile::Cut;
use super::vector::{Job, Tile, Vector};

/// With the instructions of AVX-VNNI or without.
#[derive(Clone, Copy)]
pub(super) struct Avx2<const VNNI: bool = false>(pub __m256, pub __m256);

pub(super) fn detected() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
}

pub(super) fn vnni_detected() -> bool {
    detected() && is_x86_feature_detected!("avxvnni")
}

#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
unsafe fn enter_with_vnni<V: Vector, J: Job<V>>(job: &J) {
    // SAFETY: the caller's promise.
    unsafe { job.run() }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn enter<V: Vector, J: Job<V>>(job: &J) {
    // SAFETY: the caller's promise.
    unsafe { job.run() }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn pin<const VNNI: bool>(mut vector: Avx2<VNNI>) -> Avx2<VNNI> {
    // SAFETY: there are no instructions.
    unsafe {
        asm!(
            "/* {0} {1} */", inout(ymm_reg) vector.0, inout(ymm_reg) vector.1,
            options(nostack, preserves_flags),
        );
    }
    vector
}

/// As `_mm256_dpwssd_avx_epi32`, which LLVM takes apart again.
#[inline]
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
fn add_products_with_vnni(mut sums: __m256i, pairs: __m256i, x: __m256i) -> __m256i {
    // SAFETY: one instruction on registers, which the caller's CPU has.
    unsafe {
        asm!(
            "{{vex}} vpdpwssd {0}, {1}, {2}",
            inout(ymm_reg) sums, in(ymm_reg) pairs, in(ymm_reg) x,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}

#[inline(always)]
unsafe fn add_products<const VNNI: bool>(sums: __m256i, pairs: __m256i, x: __m256i) -> __m256i {
    // SAFETY: the caller's promise; with `VNNI` the CPU has it.
    unsafe {
        if VNNI {
            add_products_with_vnni(sums, pairs, x)
        } else {
            _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, x))
        }
    }
}

impl<const VNNI: bool> Vector for Avx2<VNNI> {
    type Integers = (__m256i, __m256i);
    const ROWS: usize = 6;
    /// Measured (Zen 4, one thread): one row of bf16 and int8 1.2 times as fast, of f32 and six bits 1.1, of four bits 0.97;
    /// two rows of bf16, int8 and f32 1.1 to 1.2; four 0.7 to 0.9.
    const WAITING: [usize; 4] = [6, 8, usize::MAX, usize::MAX];

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self(_mm256_set1_ps(value), _mm256_set1_ps(value)) }
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self(_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe {
            _mm256_storeu_ps(to, self.0);
            _mm256_storeu_ps(to.add(8), self.1);
        }
    }

    #[inline(always)]
    unsafe fn mul(self, by: Self) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self(_mm256_mul_ps(self.0, by.0), _mm256_mul_ps(self.1, by.1)) }
    }

    #[inline(always)]
    unsafe fn mul_add(self, by: Self, plus: Self) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            Self(_mm256_fmadd_ps(self.0, by.0, plus.0), _mm256_fmadd_ps(self.1, by.1, plus.1))
        }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self(_mm256_add_ps(self.0, other.0), _mm256_add_ps(self.1, other.1)) }
    }

    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self(_mm256_max_ps(self.0, other.0), _mm256_max_ps(self.1, other.1)) }
    }

    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        // SAFETY: the caller's promise.
        unsafe {
            let eight = _mm256_max_ps(self.0, self.1);
            let four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
        }
    }

    #[inline(always)]
    unsafe fn power_of_two(self) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            let power = |it| {
                let exponents = _mm256_slli_epi32::<23>(_mm256_castps_si256(it));
                _mm256_castsi256_ps(_mm256_add_epi32(exponents, _mm256_set1_epi32(127 << 23)))
            };
            Self(power(self.0), power(self.1))
        }
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
            let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.add(16).cast()));
            Self(
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)),
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)),
            )
        }
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const u8) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            let low = _mm256_cvtph_ps(_mm_loadu_si128(from.cast()));
            Self(low, _mm256_cvtph_ps(_mm_loadu_si128(from.add(16).cast())))
        }
    }

    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            let bytes = _mm_loadu_si128(from.cast());
            let (low, high) = (_mm256_cvtepu8_epi32(bytes), _mm_unpackhi_epi64(bytes, bytes));
            Self(_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(high)))
        }
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
        unsafe { pin(self) }
    }

    #[inline(always)]
    unsafe fn splat_i32(value: i32) -> Self::Integers {
        // SAFETY: the caller's promise.
        unsafe { (_mm256_set1_epi32(value), _mm256_set1_epi32(value)) }
    }

    #[inline(always)]
    unsafe fn pairs_i8(from: *const u8, odd: bool) -> Self::Integers {
        // SAFETY: the caller's promise.
        unsafe {
            let pairs = |from: *const u8| {
                let words = _mm256_loadu_si256(from.cast());
                _mm256_srai_epi16::<8>(if odd { words } else { _mm256_slli_epi16::<8>(words) })
            };
            (pairs(from), pairs(from.add(32)))
        }
    }

    #[inline(always)]
    unsafe fn bits(from: *const u8, shift: isize, mask: i32) -> Self::Integers {
        // SAFETY: the caller's promise.
        unsafe {
            let by = _mm256_set1_epi32(shift.unsigned_abs() as i32);
            let bits = |from: *const u8| {
                let words = _mm256_loadu_si256(from.cast());
                let shifted = match shift < 0 {
                    true => _mm256_sllv_epi32(words, by),
                    false => _mm256_srlv_epi32(words, by),
                };
                _mm256_and_si256(shifted, _mm256_set1_epi32(mask))
            };
            (bits(from), bits(from.add(32)))
        }
    }

    #[inline(always)]
    unsafe fn load_i32(from: *const u8) -> Self::Integers {
        // SAFETY: the caller's promise.
        unsafe { (_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(32).cast())) }
    }

    #[inline(always)]
    unsafe fn store_i32(integers: Self::Integers, to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe {
            _mm256_storeu_si256(to.cast(), integers.0);
            _mm256_storeu_si256(to.add(32).cast(), integers.1);
        }
    }

    #[inline(always)]
    unsafe fn subtract_pairs(pairs: Self::Integers, other: Self::Integers) -> Self::Integers {
        // SAFETY: the caller's promise.
        unsafe { (_mm256_sub_epi16(pairs.0, other.0), _mm256_sub_epi16(pairs.1, other.1)) }
    }

    #[inline(always)]
    unsafe fn multiply_pairs(pairs: Self::Integers, by: Self::Integers) -> Self::Integers {
        // SAFETY: the caller's promise.
        unsafe {
            let both = |by| _mm256_blend_epi16::<0xaa>(by, _mm256_slli_epi32::<16>(by));
            let of = |pairs, by| _mm256_mullo_epi16(pairs, both(by));
            (of(pairs.0, by.0), of(pairs.1, by.1))
        }
    }

    #[inline(always)]
    unsafe fn or(a: Self::Integers, b: Self::Integers) -> Self::Integers {
        // SAFETY: the caller's promise.
        unsafe { (_mm256_or_si256(a.0, b.0), _mm256_or_si256(a.1, b.1)) }
    }

    #[inline(always)]
    unsafe fn look_up(pairs: Self::Integers, table: &[u8; 16]) -> Self::Integers {
        // SAFETY: the caller's promise; the table is as long as the read.
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            let low = _mm256_set1_epi16(0xff);
            let of = |pairs| _mm256_and_si256(_mm256_shuffle_epi8(table, pairs), low);
            (of(pairs.0), of(pairs.1))
        }
    }

    #[inline(always)]
    unsafe fn add_products(
        sums: Self::Integers,
        pairs: Self::Integers,
        x: Self::Integers,
    ) -> Self::Integers {
        // SAFETY: the caller's promise.
        unsafe {
            (add_products::<VNNI>(sums.0, pairs.0, x.0), add_products::<VNNI>(sums.1, pairs.1, x.1))
        }
    }

    #[inline(always)]
    unsafe fn from_i32(integers: Self::Integers) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self(_mm256_cvtepi32_ps(integers.0), _mm256_cvtepi32_ps(integers.1)) }
    }

    #[inline(always)]
    unsafe fn widen_i8(from: *const u8) -> Self::Integers {
        // SAFETY: the caller's promise.
        unsafe {
            let bytes = _mm_loadu_si128(from.cast());
            let high = _mm_unpackhi_epi64(bytes, bytes);
            (_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(high))
        }
    }

    #[inline(always)]
    unsafe fn add_i32(a: Self::Integers, b: Self::Integers) -> Self::Integers {
        // SAFETY: the caller's promise.
        unsafe { (_mm256_add_epi32(a.0, b.0), _mm256_add_epi32(a.1, b.1)) }
    }

    #[inline(always)]
    unsafe fn multiply_i32(a: Self::Integers, b: Self::Integers) -> Self::Integers {
        // SAFETY: the caller's promise.
        unsafe { (_mm256_mullo_epi32(a.0, b.0), _mm256_mullo_epi32(a.1, b.1)) }
    }

    #[inline(always)]
    unsafe fn pin_i32(integers: Self::Integers) -> Self::Integers {
        // SAFETY: the caller's promise.
        unsafe {
            let Self(low, high) =
                pin(Self(_mm256_castsi256_ps(integers.0), _mm256_castsi256_ps(integers.1)));
            (_mm256_castps_si256(low), _mm256_castps_si256(high))
        }
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
                2 => Self::enter(&Cut::<_, 2, 2>(tile)),
                3 => Self::enter(&Cut::<_, 2, 3>(tile)),
                4 => Self::enter(&Cut::<_, 1, 4>(tile)),
                5 => Self::enter(&Cut::<_, 1, 5>(tile)),
                _ => Self::enter(&Cut::<_, 1, 6>(tile)),
            }
        }
    }

    unsafe fn enter<J: Job<Self>>(job: &J) {
        // SAFETY: the caller's promise.
        unsafe { if VNNI { enter_with_vnni(job) } else { enter(job) } }
    }
}

//! Sixteen f32 as four registers of NEON, which every AArch64 CPU has.
//!
//! A sum waits four cycles for the one before it, and cores begin two (Neoverse N1) to four (V1, Apple)
//! multiplications a cycle: tiles have at least 16 sums, and at most 24, so that a column and activations
//! have registers beside them.

use std::arch::aarch64::*;
use std::arch::asm;

use super::tile::Cut;
use super::vector::{Job, Tile, Vector};

/// With nothing more, or with [`DOT`] or [`MATRICES`].
#[derive(Clone, Copy)]
pub(super) struct Neon<const MORE: u8 = 0>(pub [float32x4_t; 4]);

/// FEAT_DotProd: four bytes to a lane.
pub(super) const DOT: u8 = 1;
/// And FEAT_BF16 and FEAT_I8MM.
pub(super) const MATRICES: u8 = 2;

pub(super) fn dot_detected() -> bool {
    std::arch::is_aarch64_feature_detected!("dotprod")
}

pub(super) fn matrices_detected() -> bool {
    dot_detected()
        && std::arch::is_aarch64_feature_detected!("bf16")
        && std::arch::is_aarch64_feature_detected!("i8mm")
}

#[target_feature(enable = "neon,dotprod,bf16,i8mm")]
unsafe fn enter_with_matrices<V: Vector, J: Job<V>>(job: &J) {
    // SAFETY: the caller's promise.
    unsafe { job.run() }
}

#[target_feature(enable = "neon,dotprod")]
unsafe fn enter_with_dot<V: Vector, J: Job<V>>(job: &J) {
    // SAFETY: the caller's promise.
    unsafe { job.run() }
}

/// Four registers, in each of which `$i` is a constant. What closures do is inlined too late to be unrolled.
macro_rules! four {
    ($i:ident => $register:expr) => {
        [four!($i 0 $register), four!($i 1 $register), four!($i 2 $register), four!($i 3 $register)]
    };
    ($i:ident $value:literal $register:expr) => {{
        const $i: usize = $value;
        $register
    }};
}
pub(super) use four;

/// Sixteen words, as they lie in memory.
#[inline(always)]
pub(super) unsafe fn load_words(from: *const u8) -> [int32x4_t; 4] {
    let from = from.cast::<i32>();
    // SAFETY: the caller's promise.
    unsafe { four!(I => vld1q_s32(from.add(4 * I))) }
}

/// The words of both in turn: of the first two lanes, and of the last two.
#[inline(always)]
pub(super) fn in_turn(a: int32x4_t, b: int32x4_t) -> [int32x4_t; 2] {
    // SAFETY: every CPU of this architecture has NEON.
    unsafe { [vzip1q_s32(a, b), vzip2q_s32(a, b)] }
}

/// The first halves of both, and the second ones.
#[inline(always)]
pub(super) fn halves(a: int32x4_t, b: int32x4_t) -> [int32x4_t; 2] {
    // SAFETY: every CPU of this architecture has NEON.
    unsafe {
        let (a, b) = (vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b));
        [vreinterpretq_s32_s64(vzip1q_s64(a, b)), vreinterpretq_s32_s64(vzip2q_s64(a, b))]
    }
}

/// Each half of a word shifted to the right, or to the left where `by`, a constant after inlining, is
/// negative.
#[inline(always)]
pub(super) fn shifted(halves: uint16x8_t, by: isize) -> uint16x8_t {
    macro_rules! shift {
        (left $($left:literal)* right $($right:literal)*) => {
            // SAFETY: every CPU of this architecture has NEON.
            unsafe {
                match by {
                    $(by if by == -$left => vshlq_n_u16::<$left>(halves),)*
                    $($right => vshrq_n_u16::<$right>(halves),)*
                    0 => halves,
                    _ => unreachable!("no half is shifted by {by}"),
                }
            }
        };
    }
    shift!(left 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 right 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
}

#[inline(always)]
fn pin(register: float32x4_t) -> float32x4_t {
    let mut register = register;
    // SAFETY: there are no instructions.
    unsafe {
        asm!("/* {0:v} */", inout(vreg) register, options(nostack, preserves_flags));
    }
    register
}

/// The first four f16 as f32.
#[inline(always)]
unsafe fn widen(from: *const u8) -> float32x4_t {
    let widened;
    // SAFETY: the caller's promise; one instruction on registers.
    unsafe {
        asm!(
            "fcvtl {0:v}.4s, {1:v}.4h", out(vreg) widened, in(vreg) vld1_u16(from.cast()),
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    widened
}

impl<const MORE: u8> Vector for Neon<MORE> {
    /// Pairs are eight lanes of first columns, eight more, and as many of second ones: a multiplication
    /// takes four of one column and adds to four sums. Sums are four lanes each.
    type Integers = [int32x4_t; 4];
    const ROWS: usize = 6;
    const TOGETHER: usize = if MORE == MATRICES { 2 } else { 1 };

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        // SAFETY: the caller's promise.
        Self([unsafe { vdupq_n_f32(value) }; 4])
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { four!(I => vld1q_f32(from.add(4 * I))) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { four!(I => vst1q_f32(to.add(4 * I), self.0[I])) };
    }

    #[inline(always)]
    unsafe fn mul(self, by: Self) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { four!(I => vmulq_f32(self.0[I], by.0[I])) })
    }

    #[inline(always)]
    unsafe fn mul_add(self, by: Self, plus: Self) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { four!(I => vfmaq_f32(plus.0[I], self.0[I], by.0[I])) })
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { four!(I => vaddq_f32(self.0[I], other.0[I])) })
    }

    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        // Of two instructions: neither of NEON's own treats what is not a number so.
        let (a, b) = (self.0, other.0);
        // SAFETY: the caller's promise.
        Self(unsafe { four!(I => vbslq_f32(vcgtq_f32(a[I], b[I]), a[I], b[I])) })
    }

    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        let [a, b, c, d] = self.0;
        // SAFETY: the caller's promise.
        unsafe { vmaxvq_f32(vmaxq_f32(vmaxq_f32(a, b), vmaxq_f32(c, d))) }
    }

    #[inline(always)]
    unsafe fn power_of_two(self) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            let one = vdupq_n_s32(127 << 23);
            Self(four!(I => {
                let exponents = vshlq_n_s32::<23>(vreinterpretq_s32_f32(self.0[I]));
                vreinterpretq_f32_s32(vaddq_s32(exponents, one))
            }))
        }
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            let (low, high) = (vld1q_u16(from.cast()), vld1q_u16(from.add(16).cast()));
            Self([
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_low_u16(low))),
                vreinterpretq_f32_u32(vshll_high_n_u16::<16>(low)),
                vreinterpretq_f32_u32(vshll_n_u16::<16>(vget_low_u16(high))),
                vreinterpretq_f32_u32(vshll_high_n_u16::<16>(high)),
            ])
        }
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const u8) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { four!(I => widen(from.add(8 * I))) })
    }

    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            let bytes = vld1q_u8(from);
            let (low, high) = (vmovl_u8(vget_low_u8(bytes)), vmovl_high_u8(bytes));
            Self([
                vcvtq_f32_u32(vmovl_u16(vget_low_u16(low))),
                vcvtq_f32_u32(vmovl_high_u16(low)),
                vcvtq_f32_u32(vmovl_u16(vget_low_u16(high))),
                vcvtq_f32_u32(vmovl_high_u16(high)),
            ])
        }
    }

    #[inline(always)]
    unsafe fn prefetch(at: *const u8) {
        // SAFETY: a prefetch never faults, and nothing depends on it.
        unsafe {
            asm!(
                "prfm pldl1keep, [{0}]", in(reg) at,
                options(readonly, nostack, preserves_flags),
            );
        }
    }

    #[inline(always)]
    unsafe fn pin(self) -> Self {
        Self(four!(I => pin(self.0[I])))
    }

    #[inline(always)]
    unsafe fn splat_i32(value: i32) -> Self::Integers {
        // SAFETY: the caller's promise.
        [unsafe { vdupq_n_s32(value) }; 4]
    }

    #[inline(always)]
    unsafe fn pairs_i8(from: *const u8, odd: bool) -> Self::Integers {
        // SAFETY: the caller's promise.
        unsafe {
            let words = load_words(from);
            let [a, b, c, d] = four!(I => vreinterpretq_s16_s32(words[I]));
            let apart = [vuzp1q_s16(a, b), vuzp1q_s16(c, d), vuzp2q_s16(a, b), vuzp2q_s16(c, d)];
            four!(I => {
                let highest = if odd { apart[I] } else { vshlq_n_s16::<8>(apart[I]) };
                vreinterpretq_s32_s16(vshrq_n_s16::<8>(highest))
            })
        }
    }

    #[inline(always)]
    unsafe fn bits(from: *const u8, shift: isize, mask: i32) -> Self::Integers {
        // SAFETY: the caller's promise.
        unsafe {
            let words = load_words(from);
            let [a, b, c, d] = four!(I => vreinterpretq_u16_s32(words[I]));
            let apart = [vuzp1q_u16(a, b), vuzp1q_u16(c, d), vuzp2q_u16(a, b), vuzp2q_u16(c, d)];
            let mask = vreinterpretq_u16_s32(vdupq_n_s32(mask));
            four!(I => vreinterpretq_s32_u16(vandq_u16(shifted(apart[I], shift), mask)))
        }
    }

    #[inline(always)]
    unsafe fn load_i32(from: *const u8) -> Self::Integers {
        // SAFETY: the caller's promise.
        unsafe { load_words(from) }
    }

    #[inline(always)]
    unsafe fn store_i32(integers: Self::Integers, to: *mut u8) {
        let to = to.cast::<i32>();
        // SAFETY: the caller's promise.
        unsafe { four!(I => vst1q_s32(to.add(4 * I), integers[I])) };
    }

    #[inline(always)]
    unsafe fn subtract_pairs(pairs: Self::Integers, other: Self::Integers) -> Self::Integers {
        // SAFETY: the caller's promise.
        unsafe {
            four!(I => {
                let (of, less) = (vreinterpretq_s16_s32(pairs[I]), vreinterpretq_s16_s32(other[I]));
                vreinterpretq_s32_s16(vsubq_s16(of, less))
            })
        }
    }

    #[inline(always)]
    unsafe fn multiply_pairs(pairs: Self::Integers, by: Self::Integers) -> Self::Integers {
        // SAFETY: the caller's promise.
        unsafe {
            let [a, b, c, d] = four!(I => vmovn_s32(by[I]));
            let by = [vcombine_s16(a, b), vcombine_s16(c, d)];
            four!(I => {
                vreinterpretq_s32_s16(vmulq_s16(vreinterpretq_s16_s32(pairs[I]), by[I % 2]))
            })
        }
    }

    #[inline(always)]
    unsafe fn or(a: Self::Integers, b: Self::Integers) -> Self::Integers {
        // SAFETY: the caller's promise.
        unsafe { four!(I => vorrq_s32(a[I], b[I])) }
    }

    #[inline(always)]
    unsafe fn add_products(
        sums: Self::Integers,
        pairs: Self::Integers,
        x: Self::Integers,
    ) -> Self::Integers {
        // SAFETY: the caller's promise.
        unsafe {
            let [first_low, first_high, second_low, second_high] =
                four!(I => vreinterpretq_s16_s32(pairs[I]));
            let x = vreinterpretq_s16_s32(x[0]);
            let [mut a, mut b, mut c, mut d] = sums;
            a = vmlal_laneq_s16::<0>(a, vget_low_s16(first_low), x);
            b = vmlal_high_laneq_s16::<0>(b, first_low, x);
            c = vmlal_laneq_s16::<0>(c, vget_low_s16(first_high), x);
            d = vmlal_high_laneq_s16::<0>(d, first_high, x);
            a = vmlal_laneq_s16::<1>(a, vget_low_s16(second_low), x);
            b = vmlal_high_laneq_s16::<1>(b, second_low, x);
            c = vmlal_laneq_s16::<1>(c, vget_low_s16(second_high), x);
            d = vmlal_high_laneq_s16::<1>(d, second_high, x);
            [a, b, c, d]
        }
    }

    #[inline(always)]
    unsafe fn from_i32(integers: Self::Integers) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { four!(I => vcvtq_f32_s32(integers[I])) })
    }

    #[inline(always)]
    unsafe fn widen_i8(from: *const u8) -> Self::Integers {
        // SAFETY: the caller's promise.
        unsafe {
            let bytes = vld1q_s8(from.cast());
            let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes));
            [
                vmovl_s16(vget_low_s16(low)),
                vmovl_high_s16(low),
                vmovl_s16(vget_low_s16(high)),
                vmovl_high_s16(high),
            ]
        }
    }

    #[inline(always)]
    unsafe fn add_i32(a: Self::Integers, b: Self::Integers) -> Self::Integers {
        // SAFETY: the caller's promise.
        unsafe { four!(I => vaddq_s32(a[I], b[I])) }
    }

    #[inline(always)]
    unsafe fn multiply_i32(a: Self::Integers, b: Self::Integers) -> Self::Integers {
        // SAFETY: the caller's promise.
        unsafe { four!(I => vmulq_s32(a[I], b[I])) }
    }

    /// Words stay whole, where [`bits`](Vector::bits) takes their halves apart.
    #[inline(always)]
    unsafe fn numbers(from: *const u8, shift: usize, mask: i32) -> Self::Integers {
        // SAFETY: the caller's promise.
        unsafe {
            let (words, by) = (load_words(from), vdupq_n_s32(-(shift as i32)));
            let mask = vdupq_n_u32(mask as u32);
            let bits = |word| vandq_u32(vshlq_u32(vreinterpretq_u32_s32(word), by), mask);
            four!(I => vreinterpretq_s32_u32(bits(words[I])))
        }
    }

    #[inline(always)]
    unsafe fn pin_i32(integers: Self::Integers) -> Self::Integers {
        // SAFETY: the caller's promise.
        unsafe { four!(I => vreinterpretq_s32_f32(pin(vreinterpretq_f32_s32(integers[I])))) }
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
        unsafe {
            match MORE {
                MATRICES => enter_with_matrices(job),
                DOT => enter_with_dot(job),
                _ => job.run(),
            }
        }
    }
}

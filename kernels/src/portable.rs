//! Sixteen f32 as an array: the compiler finds the baseline's vectors by itself.

use super::LANES;
use super::tile::Cut;
use super::vector::{Job, Tile, Vector};

#[derive(Clone, Copy)]
pub(super) struct Portable([f32; LANES]);

/// `f` of each of sixteen elements at `from`.
#[inline(always)]
unsafe fn map<T: Copy>(from: *const u8, f: impl Fn(T) -> f32) -> Portable {
    // SAFETY: the caller's promise.
    let from = unsafe { from.cast::<[T; LANES]>().read_unaligned() };
    Portable(std::array::from_fn(|lane| f(from[lane])))
}

/// Without branches, so that it is vectorised, and without subnormal f32, which threads may flush.
#[inline(always)]
fn f16_to_f32(bits: u16) -> f32 {
    const REBIAS: u32 = (127 - 15) << 23;
    const LEAST: u32 = REBIAS + (1 << 23);
    let magnitude = u32::from(bits & 0x7fff) << 13;
    let normal = magnitude + REBIAS;
    let subnormal = (f32::from_bits(magnitude + LEAST) - f32::from_bits(LEAST)).to_bits();
    let infinite = normal + REBIAS;
    let value = if magnitude < 1 << 23 {
        subnormal
    } else if magnitude >= 31 << 23 {
        infinite
    } else {
        normal
    };
    f32::from_bits(value | u32::from(bits & 0x8000) << 16)
}

impl Vector for Portable {
    /// A pair is two i16 in one i32, the first in its low half.
    type Integers = [i32; LANES];
    const ROWS: usize = 2;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Self([value; LANES])
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { from.cast::<[f32; LANES]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<[f32; LANES]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    unsafe fn mul(self, by: Self) -> Self {
        Self(std::array::from_fn(|lane| self.0[lane] * by.0[lane]))
    }

    #[inline(always)]
    unsafe fn mul_add(self, by: Self, plus: Self) -> Self {
        // Where it is no instruction, `f32::mul_add` is a function call.
        if cfg!(any(target_arch = "aarch64", target_feature = "fma")) {
            Self(std::array::from_fn(|lane| self.0[lane].mul_add(by.0[lane], plus.0[lane])))
        } else {
            Self(std::array::from_fn(|lane| self.0[lane] * by.0[lane] + plus.0[lane]))
        }
    }

    #[inline(always)]
    unsafe fn add(self, other: Self) -> Self {
        Self(std::array::from_fn(|lane| self.0[lane] + other.0[lane]))
    }

    #[inline(always)]
    unsafe fn max(self, other: Self) -> Self {
        let larger = |a: f32, b: f32| if a > b { a } else { b };
        Self(std::array::from_fn(|lane| larger(self.0[lane], other.0[lane])))
    }

    #[inline(always)]
    unsafe fn largest(self) -> f32 {
        self.0.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }

    #[inline(always)]
    unsafe fn power_of_two(self) -> Self {
        let power = |it: f32| f32::from_bits((it.to_bits() << 23).wrapping_add(127 << 23));
        Self(self.0.map(power))
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> Self {
        // SAFETY: the caller's promise.
        unsafe { map(from, |bits: u16| f32::from_bits(u32::from(bits) << 16)) }
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const u8) -> Self {
        // SAFETY: the caller's promise.
        unsafe { map(from, f16_to_f32) }
    }

    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> Self {
        // SAFETY: the caller's promise.
        unsafe { map(from, |byte: u8| f32::from(byte)) }
    }

    #[inline(always)]
    unsafe fn prefetch(_: *const u8) {}

    #[inline(always)]
    unsafe fn pin(self) -> Self {
        self
    }

    #[inline(always)]
    unsafe fn splat_i32(value: i32) -> Self::Integers {
        [value; LANES]
    }

    #[inline(always)]
    unsafe fn pairs_i8(from: *const u8, odd: bool) -> Self::Integers {
        // SAFETY: the caller's promise.
        let words = unsafe { from.cast::<[[i8; 4]; LANES]>().read_unaligned() };
        let at = usize::from(odd);
        words.map(|word| i32::from(word[at]) & 0xffff | i32::from(word[at + 2]) << 16)
    }

    #[inline(always)]
    unsafe fn bits(from: *const u8, shift: isize, mask: i32) -> Self::Integers {
        // SAFETY: the caller's promise.
        let words = unsafe { from.cast::<[u32; LANES]>().read_unaligned() };
        let by = shift.unsigned_abs();
        words.map(|word| if shift < 0 { word << by } else { word >> by } as i32 & mask)
    }

    #[inline(always)]
    unsafe fn load_i32(from: *const u8) -> Self::Integers {
        // SAFETY: the caller's promise.
        unsafe { from.cast::<[i32; LANES]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store_i32(integers: Self::Integers, to: *mut u8) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<Self::Integers>().write_unaligned(integers) }
    }

    #[inline(always)]
    unsafe fn subtract_pairs(pairs: Self::Integers, other: Self::Integers) -> Self::Integers {
        std::array::from_fn(|lane| {
            let (pair, other) = (pairs[lane], other[lane]);
            let low = (pair as i16).wrapping_sub(other as i16);
            let high = ((pair >> 16) as i16).wrapping_sub((other >> 16) as i16);
            i32::from(low) & 0xffff | i32::from(high) << 16
        })
    }

    #[inline(always)]
    unsafe fn multiply_pairs(pairs: Self::Integers, by: Self::Integers) -> Self::Integers {
        std::array::from_fn(|lane| {
            let (pair, by) = (pairs[lane], by[lane] as i16);
            let low = (pair as i16).wrapping_mul(by);
            let high = ((pair >> 16) as i16).wrapping_mul(by);
            i32::from(low) & 0xffff | i32::from(high) << 16
        })
    }

    #[inline(always)]
    unsafe fn or(a: Self::Integers, b: Self::Integers) -> Self::Integers {
        std::array::from_fn(|lane| a[lane] | b[lane])
    }

    #[inline(always)]
    unsafe fn add_products(
        sums: Self::Integers,
        pairs: Self::Integers,
        x: Self::Integers,
    ) -> Self::Integers {
        let low = |pair: i32| i32::from(pair as i16);
        std::array::from_fn(|lane| {
            let (pair, x) = (pairs[lane], x[lane]);
            let products = (low(pair) * low(x)).wrapping_add((pair >> 16) * (x >> 16));
            sums[lane].wrapping_add(products)
        })
    }

    #[inline(always)]
    unsafe fn from_i32(integers: Self::Integers) -> Self {
        Self(integers.map(|integer| integer as f32))
    }

    #[inline(always)]
    unsafe fn widen_i8(from: *const u8) -> Self::Integers {
        // SAFETY: the caller's promise.
        unsafe { from.cast::<[i8; LANES]>().read() }.map(i32::from)
    }

    #[inline(always)]
    unsafe fn add_i32(a: Self::Integers, b: Self::Integers) -> Self::Integers {
        std::array::from_fn(|lane| a[lane].wrapping_add(b[lane]))
    }

    #[inline(always)]
    unsafe fn multiply_i32(a: Self::Integers, b: Self::Integers) -> Self::Integers {
        std::array::from_fn(|lane| a[lane].wrapping_mul(b[lane]))
    }

    #[inline(always)]
    unsafe fn pin_i32(integers: Self::Integers) -> Self::Integers {
        integers
    }

    unsafe fn run_one<T: Tile<Self>>(tile: &T) {
        // SAFETY: the caller's promise.
        unsafe { Self::enter(&Cut::<_, 1, 1>(tile)) }
    }

    unsafe fn run<T: Tile<Self>>(rows: usize, tile: &T) {
        // SAFETY: the caller's promise.
        unsafe {
            match rows {
                1 => Self::run_one(tile),
                _ => Self::enter(&Cut::<_, 1, 2>(tile)),
            }
        }
    }

    unsafe fn enter<J: Job<Self>>(job: &J) {
        // SAFETY: the caller's promise.
        unsafe { job.run() }
    }
}

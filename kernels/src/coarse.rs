//! Products with the coarse part of weights that are [split](crate::quantise::split_block).
//!
//! The part is a matrix of int4 with another middle: what the fine part adds is centred too, so
//! that the coarse product alone is nearly the whole. With the stored `n` and `l`, `X` the sum of a
//! group's activations `x` and `f` the whole number below `X (2^s - 1) / 2^(s + 1)`, the group is
//!
//! ```text
//! sum q x  =  sum (2^s n + l - 2^s 8) x  =  2^s (sum n x - 8 X + f)  +  (sum l x - 2^s f)
//! ```
//!
//! in integers, the first half being what is computed here, the second what `refine.rs` adds.

use super::integers::{Group, Int4, PAIRS, Rounding};
use super::vector::Vector;
use super::{Format, Isa, Kernel, portable::Portable, walk};
#[cfg(target_arch = "x86_64")]
use super::{avx2::Avx2, avx512::Avx512, nibbles::Nibbles};
use crate::format::GROUP;

/// The fastest product with the coarse part of `format` on this CPU.
///
/// # Panics
///
/// When the format is not [splittable](Format::is_splittable).
pub fn coarse(format: Format) -> Kernel {
    coarse_for(format, Isa::detect())
}

/// The product with the coarse part of `format` in the instructions of `isa`, whether or not this
/// CPU has them. Its weights are blocks of [`Format::Int4`]; it is made for one row.
///
/// # Panics
///
/// As [`coarse`].
pub fn coarse_for(format: Format, isa: Isa) -> Kernel {
    match isa {
        Isa::Portable => kernel_of::<Portable, Int4>(format),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => kernel_of::<Avx2, Nibbles>(format),
        #[cfg(target_arch = "x86_64")]
        Isa::AvxVnni => kernel_of::<Avx2<true>, Nibbles>(format),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => kernel_of::<Avx512<false>, Int4>(format),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Vnni | Isa::Avx512Bf16 => kernel_of::<Avx512<true>, Nibbles>(format),
    }
}

fn kernel_of<V: Vector, F: Group<V>>(format: Format) -> Kernel {
    match format {
        Format::Int8 => walk::integers::<V, Coarse<F, 4>>,
        Format::Int6 => walk::integers::<V, Coarse<F, 2>>,
        _ => panic!("{format:?} weights can't be split"),
    }
}

/// `f` of a group whose activations sum to `sum`, the low part of a weight having `shift` bits.
#[inline(always)]
pub(super) fn middle(sum: i32, shift: u32) -> i32 {
    sum.wrapping_mul((1 << shift) - 1) >> (shift + 1)
}

/// The high bits of integers, stored as `F` is, of which `SHIFT` low bits lie elsewhere.
struct Coarse<F, const SHIFT: u32>(F);

impl<F: Rounding, const SHIFT: u32> Rounding for Coarse<F, SHIFT> {
    const OFFSET: i32 = F::OFFSET;
    const SCALE: f32 = (1 << SHIFT) as f32;

    #[inline(always)]
    fn start(sum: i32) -> i32 {
        F::start(sum).wrapping_add(middle(sum, SHIFT))
    }

    #[inline(always)]
    unsafe fn arranged(integers: &[u32; GROUP]) -> [u32; PAIRS] {
        // SAFETY: the caller's promise.
        unsafe { F::arranged(integers) }
    }
}

impl<V: Vector, F: Group<V>, const SHIFT: u32> Group<V> for Coarse<F, SHIFT> {
    const BYTES: usize = F::BYTES;

    #[inline(always)]
    unsafe fn add<const R: usize, const M: usize>(
        sums: &mut [[V::Integers; M]; R],
        weights: *const u8,
        apart: usize,
        x: *const u32,
        stride: usize,
    ) {
        // SAFETY: the caller's promise.
        unsafe { F::add(sums, weights, apart, x, stride) }
    }
}

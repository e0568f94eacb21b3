//! Activations of floats as tiles take them: in rows of bfloat16.

use std::arch::x86_64::*;

use super::LANES;
use super::amx::ROW;

/// Columns of a tile of activations.
pub(super) const DEPTH: usize = ROW / size_of::<u16>();

/// How activations lie.
pub(super) trait Activations {
    /// Parts whose sum is an activation.
    const PARTS: usize;
    /// Bytes of an activation.
    const BYTES: usize;

    /// Writes the parts of [`DEPTH`] activations, so many bytes apart.
    ///
    /// # Safety
    ///
    /// The CPU has AVX-512 BW, there are as many at `x`, and room for them.
    unsafe fn split(x: *const u8, to: *mut u8, apart: usize);
}

/// bfloat16 as they are.
pub(super) struct Narrow;

impl Activations for Narrow {
    const PARTS: usize = 1;
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn split(x: *const u8, to: *mut u8, _: usize) {
        // SAFETY: the caller's promise.
        unsafe { _mm512_storeu_si512(to.cast(), _mm512_loadu_si512(x.cast())) }
    }
}

/// f32, as three bfloat16 of eight significant bits each, whose sum they are to the bit: products with these
/// are exact in f32, and only the sums of them are rounded, as without tiles. Tiles take subnormal numbers,
/// parts among them, for zero; and what is infinite, activation or weight, gives no number.
pub(super) struct Split;

impl Activations for Split {
    const PARTS: usize = 3;
    const BYTES: usize = 4;

    #[inline(always)]
    unsafe fn split(x: *const u8, to: *mut u8, apart: usize) {
        /// The upper halves of two vectors of words.
        const UPPER: [i16; 32] = {
            let mut order = [0; 32];
            let mut i = 0;
            while i < 32 {
                order[i] = 2 * i as i16 + 1;
                i += 1;
            }
            order
        };
        // SAFETY: the caller's promise, and as many elements as a register has.
        unsafe {
            let order = _mm512_loadu_si512(UPPER.as_ptr().cast());
            let upper = _mm512_set1_epi32(0xffff_0000_u32 as i32);
            let x = x.cast::<f32>();
            let mut rest = [_mm512_loadu_ps(x), _mm512_loadu_ps(x.add(LANES))];
            for part in 0..Self::PARTS {
                let words = [_mm512_castps_si512(rest[0]), _mm512_castps_si512(rest[1])];
                let halves = _mm512_permutex2var_epi16(words[0], order, words[1]);
                _mm512_storeu_si512(to.add(part * apart).cast(), halves);
                for (rest, words) in rest.iter_mut().zip(words) {
                    let taken = _mm512_castsi512_ps(_mm512_and_si512(words, upper));
                    *rest = _mm512_sub_ps(*rest, taken);
                }
            }
        }
    }
}

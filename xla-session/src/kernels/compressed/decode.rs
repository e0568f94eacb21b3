//! What the innermost loops need of a vector, and the two ways to multiply.

use std::marker::PhantomData;

use super::super::floats::{Bf16, Float};
use super::super::vector::Vector;

/// Vectors that compressed weights are decoded into: pairs of bfloat16 columns, sixteen lanes of
/// them, the first of a pair in the low half of a word.
///
/// # Safety
///
/// As for [`Vector`].
pub(in super::super) trait Decode: Vector {
    /// The exponents of a block, ready to be looked up.
    type Exponents: Copy;
    /// The codes of eight columns.
    type Codes: Copy;

    /// Sixteen of one byte each.
    unsafe fn exponents(from: *const u8) -> Self::Exponents;
    unsafe fn codes(from: *const u8) -> Self::Codes;
    /// Pair `i` of the four, `i` being a constant after inlining, of 32 bytes of sign and mantissa.
    unsafe fn pair(
        mantissas: *const u8,
        codes: Self::Codes,
        i: usize,
        exponents: Self::Exponents,
    ) -> Self::Integers;
    /// Sixteen words.
    unsafe fn load_words(from: *const u8) -> Self::Integers;
    unsafe fn store_words(words: Self::Integers, to: *mut u8);
    /// Both columns as f32.
    unsafe fn widen(pair: Self::Integers) -> [Self; 2];
    /// Both columns as f32 whose low halves are those of `lows`.
    unsafe fn widen_with(pair: Self::Integers, lows: Self::Integers) -> [Self; 2];
}

/// How pairs of columns meet activations.
pub(in super::super) trait Arithmetic<V: Decode>: 'static {
    /// Words of activations that meet a pair.
    const WORDS: usize;
    /// Plain bfloat16 weights, for the same activations.
    type Plain: Float<V>;
    /// A pair, made ready.
    type Columns: Copy;

    /// # Safety
    ///
    /// As for [`Vector`].
    unsafe fn columns(pair: V::Integers, lows: Option<V::Integers>) -> Self::Columns;

    /// # Safety
    ///
    /// As for [`Vector`].
    unsafe fn add_products(sum: V, columns: Self::Columns, x: *const u32) -> V;

    /// The activation that meets `column`.
    ///
    /// # Safety
    ///
    /// As for [`Vector`].
    unsafe fn activation(x: *const u32, column: usize) -> f32;
}

/// Weights are widened to f32, as activations are.
pub(in super::super) struct Wide;

impl<V: Decode> Arithmetic<V> for Wide {
    const WORDS: usize = 2;
    type Plain = Bf16;
    type Columns = [V; 2];

    #[inline(always)]
    unsafe fn columns(pair: V::Integers, lows: Option<V::Integers>) -> [V; 2] {
        // SAFETY: as the caller promises.
        unsafe {
            match lows {
                Some(lows) => V::widen_with(pair, lows),
                None => V::widen(pair),
            }
        }
    }

    #[inline(always)]
    unsafe fn add_products(sum: V, columns: [V; 2], x: *const u32) -> V {
        // SAFETY: as the caller promises.
        unsafe {
            let [first, second] = [0, 1].map(|i| V::splat(x.cast::<f32>().add(i).read_unaligned()));
            columns[1].mul_add(second, columns[0].mul_add(first, sum))
        }
    }

    #[inline(always)]
    unsafe fn activation(x: *const u32, column: usize) -> f32 {
        // SAFETY: as the caller promises.
        unsafe { x.cast::<f32>().add(column).read_unaligned() }
    }
}

/// Weights and activations stay bfloat16; `F` multiplies pairs of them.
pub(in super::super) struct Pairs<F>(PhantomData<F>);

impl<V: Decode, F: Float<V, Weights = V::Integers>> Arithmetic<V> for Pairs<F> {
    const WORDS: usize = 1;
    type Plain = F;
    type Columns = V::Integers;

    #[inline(always)]
    unsafe fn columns(pair: V::Integers, _: Option<V::Integers>) -> V::Integers {
        pair
    }

    #[inline(always)]
    unsafe fn add_products(sum: V, columns: V::Integers, x: *const u32) -> V {
        // SAFETY: as the caller promises.
        unsafe { F::add_products(sum, columns, x.read_unaligned()) }
    }

    #[inline(always)]
    unsafe fn activation(x: *const u32, column: usize) -> f32 {
        // SAFETY: as the caller promises.
        let bits = unsafe { x.cast::<u16>().add(column).read_unaligned() };
        f32::from_bits(u32::from(bits) << 16)
    }
}

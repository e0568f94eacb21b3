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
    /// Fewest rows of a tile that pairs of columns of several blocks meet side by side, if there are registers for
    /// what these are decoded with.
    const SIDE_BY_SIDE: usize = usize::MAX;
    /// Most rows that meet blocks as they are stored, if these are more than a tile has.
    const STORED: usize = 0;
    /// Most rows of a tile that decodes what other tiles meet too.
    const DECODING: usize = Self::ROWS;
    /// The upper bytes of a block, ready to be looked up.
    type Uppers: Copy;

    /// Sixteen of one byte each.
    unsafe fn uppers(from: *const u8) -> Self::Uppers;
    /// Both pairs of half `i` of the eight columns whose lower bytes and codes are at `group`, `i` being a constant after inlining.
    unsafe fn pairs(group: *const u8, i: usize, uppers: Self::Uppers) -> [Self::Integers; 2];
    /// Column `i` of a pair, `i` being a constant after inlining, as f32 whose low halves are those
    /// of `lows`, or 0.
    unsafe fn column(pair: Self::Integers, lows: Option<Self::Integers>, i: usize) -> Self;
}

/// How pairs of columns meet activations.
pub(in super::super) trait Arithmetic<V: Decode>: 'static {
    /// Words of activations that meet a pair.
    const WORDS: usize;
    /// How plain bfloat16 weights meet them.
    type Float: Float<V>;

    /// What of a pair meets word `i` of these, `i` being a constant after inlining.
    ///
    /// # Safety
    ///
    /// As for [`Vector`].
    unsafe fn weights(
        pair: V::Integers,
        lows: Option<V::Integers>,
        i: usize,
    ) -> <Self::Float as Float<V>>::Weights;

    /// Keeps in 64 bytes what [`weights`](Arithmetic::weights) gave.
    ///
    /// # Safety
    ///
    /// As for [`Vector`].
    unsafe fn store(weights: <Self::Float as Float<V>>::Weights, to: *mut u8);

    /// What was kept.
    ///
    /// # Safety
    ///
    /// As for [`Vector`].
    unsafe fn load(from: *const u8) -> <Self::Float as Float<V>>::Weights;

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
    type Float = Bf16;

    #[inline(always)]
    unsafe fn weights(pair: V::Integers, lows: Option<V::Integers>, i: usize) -> V {
        // SAFETY: as the caller promises.
        unsafe { V::column(pair, lows, i) }
    }

    #[inline(always)]
    unsafe fn store(weights: V, to: *mut u8) {
        // SAFETY: as the caller promises.
        unsafe { weights.store(to.cast()) }
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> V {
        // SAFETY: as the caller promises.
        unsafe { V::load(from.cast()) }
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
    type Float = F;

    #[inline(always)]
    unsafe fn weights(pair: V::Integers, _: Option<V::Integers>, _: usize) -> V::Integers {
        pair
    }

    #[inline(always)]
    unsafe fn store(weights: V::Integers, to: *mut u8) {
        // SAFETY: as the caller promises.
        unsafe { V::store_i32(weights, to) }
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> V::Integers {
        // SAFETY: as the caller promises.
        unsafe { V::load_i32(from) }
    }

    #[inline(always)]
    unsafe fn activation(x: *const u32, column: usize) -> f32 {
        // SAFETY: as the caller promises.
        let bits = unsafe { x.cast::<u16>().add(column).read_unaligned() };
        f32::from_bits(u32::from(bits) << 16)
    }
}

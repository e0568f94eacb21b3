//! Activations as integers: what meets weights that are integers.
//!
//! They are rounded to 16 bits, with a scale for each group of a row: their step is a 65278th of the
//! group's range, a hundredth of that of int8 weights; or to 15 or 8 bits ([`largest_for`]). A row is rounded
//! once, by whoever calls, and not by every product with some of the blocks: that took a twentieth of a
//! prompt.

use std::marker::PhantomData;

use super::integers::{LINE, PAIRS, Rounding};
use super::vector::{Job, Vector};
use crate::format::{Format, GROUP};

/// What the largest activation of a group becomes for products with weights of `format`: two bytes of 127, as
/// some kernels multiply each byte by itself, with its sign; or one, beside weights whose own rounding costs a dozen
/// times what that does, or where that was asked for ([`Format::Int8Rounded`]). Where
/// [scales are integers](super::scales::Scales::INTEGERS),
/// the sum of a group has to be an i32: of Q6_K it is up to `32 * 32 * 128` times an activation, of Q3_K 32 times less.
pub(super) fn largest_for(format: Format) -> f32 {
    match format {
        Format::Nested4 | Format::Int8Rounded => 127.0,
        Format::Q6K => ((1 << 14) - 1) as f32,
        _ => (127 * 256 + 127) as f32,
    }
}

/// Bytes of a row of `columns` activations as products with integers take it, of which
/// [`round_row`](crate::round_row) makes them. Rows begin at multiples of 64 bytes where the first one
/// does.
pub fn rounded_bytes(columns: usize) -> usize {
    Rounded::words(columns.div_ceil(GROUP)) * size_of::<u32>()
}

/// Rows of activations as integers with scales: of each group the [words](Rounding::WORDS) that
/// [`Rounding::arranged`] has, one group behind the other, for which [`PAIRS`] of each are reserved; then the groups'
/// scales, f32, then the sums of each half of a group, i32.
#[derive(Clone, Copy)]
pub(super) struct Rounded {
    at: *mut u32,
    groups: usize,
}

impl Rounded {
    /// Rows of `columns` at `at`.
    pub fn new(at: *mut u8, columns: usize) -> Self {
        Self { at: at.cast(), groups: columns.div_ceil(GROUP) }
    }

    /// Words of a row: a line more than there are, or rows would compete for the same sets of the L1
    /// cache.
    fn words(groups: usize) -> usize {
        const LINE_WORDS: usize = LINE / size_of::<u32>();
        (groups * (PAIRS + 3)).next_multiple_of(LINE_WORDS) + LINE_WORDS
    }

    /// Groups of a row.
    pub fn groups(self) -> usize {
        self.groups
    }

    /// Words between rows.
    pub fn stride(self) -> usize {
        Self::words(self.groups)
    }

    /// The same from row `first` on.
    ///
    /// # Safety
    ///
    /// There is such a row.
    pub unsafe fn rows_from(self, first: usize) -> Self {
        // SAFETY: the caller's promise.
        Self { at: unsafe { self.at.add(first * self.stride()) }, ..self }
    }

    /// The words of groups, their scales and sums, of the first row.
    pub fn parts(self) -> (*mut u32, *mut f32, *mut [i32; 2]) {
        let scales = self.at.wrapping_add(self.groups * PAIRS);
        (self.at, scales.cast(), scales.wrapping_add(self.groups).cast())
    }
}

/// Rounds a row of `columns` f32 at `x`.
pub(super) struct Round<I> {
    pub x: *const f32,
    pub columns: usize,
    pub to: Rounded,
    /// [`largest_for`] the format.
    pub most: f32,
    pub integers: PhantomData<I>,
}

impl<I> Round<I> {
    /// The same with integers of `J`.
    pub fn arranged<J>(self) -> Round<J> {
        let Self { x, columns, to, most, .. } = self;
        Round { x, columns, to, most, integers: PhantomData }
    }
}

impl<V: Vector, I: Rounding> Job<V> for Round<I> {
    #[inline(always)]
    unsafe fn run(&self) {
        let Self { x, columns, to, most, .. } = *self;
        let (words, scales, sums) = to.parts();
        // SAFETY: the caller's promise covers `columns` and what `Rounded` states.
        unsafe {
            let x = std::slice::from_raw_parts(x, columns);
            let scales = std::slice::from_raw_parts_mut(scales, to.groups);
            let sums = std::slice::from_raw_parts_mut(sums, to.groups);
            let (whole, rest) = x.as_chunks::<GROUP>();
            for group in 0..whole.len() {
                // Or LLVM takes sixteen groups at once, with gathers: ten times slower.
                let group = std::hint::black_box(group);
                let to = words.add(group * I::WORDS);
                (scales[group], sums[group]) = round::<I>(&whole[group], most, to);
            }
            if !rest.is_empty() {
                let mut padded = [0.0; GROUP];
                padded[..rest.len()].copy_from_slice(rest);
                let group = whole.len();
                let to = words.add(group * I::WORDS);
                (scales[group], sums[group]) = round::<I>(&padded, most, to);
            }
        }
    }
}

/// Rounds a group, whose largest becomes `most`; returns its scale and the sums of its halves. The scale of a group
/// with a value that is not finite is not a number.
///
/// # Safety
///
/// As for [`Rounding::arranged`]; there is room for its words at `to`.
#[inline(always)]
unsafe fn round<I: Rounding>(x: &[f32; GROUP], most: f32, to: *mut u32) -> (f32, [i32; 2]) {
    /// Added to a small number, it leaves the nearest integer in the low bits.
    const NEAREST: f32 = 1.5 * (1 << 23) as f32;
    // As integers, whose order is that of magnitudes, and in which NaN is the largest.
    let mut largest = 0;
    for x in x {
        largest = largest.max(x.to_bits() & i32::MAX as u32);
    }
    let largest = f32::from_bits(largest);
    // Below, the inverse would overflow; such a group is nothing beside any other.
    let inverse = if largest < 1e-30 { 0.0 } else { most / largest };
    let mut integers = [0; GROUP];
    let mut sums = [0u32; 2];
    let halves = integers.as_chunks_mut::<{ GROUP / 2 }>().0.iter_mut();
    for ((integers, x), sum) in halves.zip(x.as_chunks::<{ GROUP / 2 }>().0).zip(&mut sums) {
        for (integer, x) in integers.iter_mut().zip(x) {
            *integer = (x * inverse + NEAREST).to_bits();
            *sum = sum.wrapping_add(*integer);
        }
    }
    const { assert!(I::WORDS <= PAIRS) };
    // SAFETY: the caller's promise; an arranged group has as many words.
    unsafe { to.copy_from_nonoverlapping(I::arranged(&integers).as_ptr(), I::WORDS) };
    const ALL_NEAREST: u32 = NEAREST.to_bits().wrapping_mul(GROUP as u32 / 2);
    // Activations that are not finite are any integers, whose sums differ from kernel to kernel: beside a scale
    // that is no number, as zero times infinity is, they all become that.
    let scale = largest / most + largest * 0.0;
    (scale, sums.map(|sum| sum.wrapping_sub(ALL_NEAREST) as i32))
}

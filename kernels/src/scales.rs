//! What the sums of a group of integers are multiplied with, to be those of weights.

use half::f16;

use super::LANES;
use super::vector::Vector;

/// How the scales of a group lie, behind its weights. A weight is its integer times the scale of its
/// part of the group, plus the part's minimum.
pub(super) trait Scales: 'static {
    /// Groups that have a head in common, which lies before the first.
    const TOGETHER: usize = 1;
    /// Its bytes.
    const HEAD: usize = 0;
    /// Bytes behind the weights of a group.
    const BYTES: usize;
    /// Parts of a group, halves or all of it.
    const PARTS: usize = 1;
    /// Whether there are minima; integers count from zero then, and from the middle of their range
    /// otherwise.
    const MINIMA: bool = false;
    /// The same as f32.
    type Decoded: Scales;

    /// The scales of a part of sixteen rows.
    ///
    /// # Safety
    ///
    /// As for [`Vector`]: there are a head and scales there.
    unsafe fn scale<V: Vector>(head: *const u8, scales: *const u8, part: usize) -> V;

    /// The minima of a part of sixteen rows.
    ///
    /// # Safety
    ///
    /// As for [`scale`](Self::scale).
    #[inline(always)]
    unsafe fn minimum<V: Vector>(_head: *const u8, _scales: *const u8, _part: usize) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::splat(0.0) }
    }
}

/// Bytes of an f16 for each row.
const HALVES: usize = LANES * size_of::<f16>();

/// `[16]` f16: the scales.
pub(super) struct Scale;

impl Scales for Scale {
    const BYTES: usize = HALVES;
    type Decoded = Decoded<1>;

    #[inline(always)]
    unsafe fn scale<V: Vector>(_head: *const u8, scales: *const u8, _part: usize) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::load_f16(scales) }
    }
}

/// `[2, 16]` f16: the scales, and the minima.
pub(super) struct ScaleAndMinimum;

impl Scales for ScaleAndMinimum {
    const BYTES: usize = 2 * HALVES;
    const MINIMA: bool = true;
    type Decoded = Decoded<1>;

    #[inline(always)]
    unsafe fn scale<V: Vector>(_head: *const u8, scales: *const u8, _part: usize) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::load_f16(scales) }
    }

    #[inline(always)]
    unsafe fn minimum<V: Vector>(_head: *const u8, scales: *const u8, _part: usize) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::load_f16(scales.add(HALVES)) }
    }
}

/// None behind a group; before each two `[2, 16]` f16: scales and minima.
pub(super) struct SharedMinimum;

impl Scales for SharedMinimum {
    const TOGETHER: usize = 2;
    const HEAD: usize = 2 * HALVES;
    const BYTES: usize = 0;
    const MINIMA: bool = true;
    type Decoded = Decoded<1>;

    #[inline(always)]
    unsafe fn scale<V: Vector>(head: *const u8, _scales: *const u8, _part: usize) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::load_f16(head) }
    }

    #[inline(always)]
    unsafe fn minimum<V: Vector>(head: *const u8, _scales: *const u8, _part: usize) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::load_f16(head.add(HALVES)) }
    }
}

/// None behind a group; before each four `[2, 16]` f16: scales, and zeros with their signs turned. A
/// minimum, the product of both, is exact in f32.
pub(super) struct SharedZero;

impl Scales for SharedZero {
    const TOGETHER: usize = 4;
    const HEAD: usize = 2 * HALVES;
    const BYTES: usize = 0;
    const MINIMA: bool = true;
    type Decoded = Decoded<1>;

    #[inline(always)]
    unsafe fn scale<V: Vector>(head: *const u8, _scales: *const u8, _part: usize) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::load_f16(head) }
    }

    #[inline(always)]
    unsafe fn minimum<V: Vector>(head: *const u8, _scales: *const u8, _part: usize) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::load_f16(head).mul(V::load_f16(head.add(HALVES))) }
    }
}

/// `[2, 16]` u8: scales and minima, in the units that eight groups have in common, `[2, 16]` f16; that of
/// minima is negative where they are.
pub(super) struct Nested;

impl Scales for Nested {
    const TOGETHER: usize = 8;
    const HEAD: usize = 2 * HALVES;
    const BYTES: usize = 2 * LANES;
    const MINIMA: bool = true;
    type Decoded = Decoded<1>;

    #[inline(always)]
    unsafe fn scale<V: Vector>(head: *const u8, scales: *const u8, _part: usize) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::load_f16(head).mul(V::load_u8(scales)) }
    }

    #[inline(always)]
    unsafe fn minimum<V: Vector>(head: *const u8, scales: *const u8, _part: usize) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::load_f16(head.add(HALVES)).mul(V::load_u8(scales.add(LANES))) }
    }
}

/// `[2, 16]` i8: the scales of each half of a group, in units that eight groups have in common, `[16]`
/// f16.
pub(super) struct NestedHalves;

impl Scales for NestedHalves {
    const TOGETHER: usize = 8;
    const HEAD: usize = HALVES;
    const BYTES: usize = 2 * LANES;
    const PARTS: usize = 2;
    type Decoded = Decoded<2>;

    #[inline(always)]
    unsafe fn scale<V: Vector>(head: *const u8, scales: *const u8, part: usize) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::load_f16(head).mul(V::load_i8(scales.add(part * LANES))) }
    }
}

/// `[PARTS, 2, 16]` f32: scales and minima that were [decoded](super::decoded).
pub(super) struct Decoded<const PARTS: usize>;

impl<const PARTS: usize> Scales for Decoded<PARTS> {
    const BYTES: usize = PARTS * 2 * LANES * size_of::<f32>();
    const PARTS: usize = PARTS;
    const MINIMA: bool = true;
    type Decoded = Self;

    #[inline(always)]
    unsafe fn scale<V: Vector>(_head: *const u8, scales: *const u8, part: usize) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::load(scales.cast::<f32>().add(2 * part * LANES)) }
    }

    #[inline(always)]
    unsafe fn minimum<V: Vector>(_head: *const u8, scales: *const u8, part: usize) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::load(scales.cast::<f32>().add((2 * part + 1) * LANES)) }
    }
}

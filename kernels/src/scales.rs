//! What the sums of a group of integers are multiplied with, to be those of weights.

use half::f16;

use super::LANES;
use super::vector::Vector;

/// How the scales of a group lie, behind its weights. A weight is its integer times the scale of its
/// part of the group, plus the part's minimum; or, with [`INTEGERS`](Self::INTEGERS), times the integer of its
/// part, times the scale.
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
    /// Whether parts have [integers](Self::integer), and all of them one scale: so the group has one sum of
    /// integers. There are no minima then, and [activations](super::rounded::largest_for) are so small that it fits.
    const INTEGERS: bool = false;
    /// The same as f32, with integers in the weights.
    type Decoded: Scales;

    /// The scales of a part of sixteen rows, or of all parts.
    ///
    /// # Safety
    ///
    /// As for [`Vector`]: there are a head and scales there.
    unsafe fn scale<V: Vector>(head: *const u8, scales: *const u8, part: usize) -> V;

    /// With [`INTEGERS`](Self::INTEGERS) those of a part of sixteen rows.
    ///
    /// # Safety
    ///
    /// As for [`scale`](Self::scale).
    #[inline(always)]
    unsafe fn integer<V: Vector>(
        _head: *const u8,
        _scales: *const u8,
        _part: usize,
    ) -> V::Integers {
        // SAFETY: the caller's promise.
        unsafe { V::splat_i32(1) }
    }

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
    const INTEGERS: bool = true;
    type Decoded = Decoded<1>;

    #[inline(always)]
    unsafe fn scale<V: Vector>(head: *const u8, _scales: *const u8, _part: usize) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::load_f16(head) }
    }

    #[inline(always)]
    unsafe fn integer<V: Vector>(_head: *const u8, scales: *const u8, part: usize) -> V::Integers {
        // SAFETY: the caller's promise.
        unsafe { V::widen_i8(scales.add(part * LANES)) }
    }
}

/// `[16]` i8: the scales, in units that eight groups have in common, `[16]` f16.
pub(super) struct NestedScale;

impl Scales for NestedScale {
    const TOGETHER: usize = 8;
    const HEAD: usize = HALVES;
    const BYTES: usize = LANES;
    type Decoded = Decoded<1>;

    #[inline(always)]
    unsafe fn scale<V: Vector>(head: *const u8, scales: *const u8, _part: usize) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::load_f16(head).mul(V::load_i8(scales)) }
    }
}

/// Adding it to a number leaves the nearest whole one, plus it: `1.5 * 2^23`.
const WHOLE: f32 = 12_582_912.0;

/// `[16]` u8: exponents of two (OCP E8M0). The scale is half of such a power, as levels are twice the floats.
pub(super) struct Exponent;

impl Scales for Exponent {
    const BYTES: usize = LANES;
    type Decoded = Decoded<1>;

    /// In two factors, as it may be smaller than the smallest power that [`Vector`] makes.
    #[inline(always)]
    unsafe fn scale<V: Vector>(_head: *const u8, scales: *const u8, _part: usize) -> V {
        const LEAST: f32 = -128.0;
        // SAFETY: the caller's promise.
        unsafe {
            let exponent = V::load_u8(scales);
            let some = exponent.mul_add(V::splat(0.5), V::splat(WHOLE + LEAST / 2.0));
            let less = some.add(V::splat(-WHOLE));
            let rest = less.mul_add(V::splat(-1.0), exponent).add(V::splat(WHOLE + LEAST));
            some.power_of_two().mul(rest.power_of_two())
        }
    }
}

/// `[2, 16]` u8: of each half of a group the scale in the low and the minimum in the high four bits, in units
/// that eight groups have in common, `[2, 16]` f16; that of minima is negative where they are.
pub(super) struct NestedNibbles;

impl NestedNibbles {
    /// The high four bits of sixteen bytes, as a float: what is above them is a sixteenth of a whole.
    #[inline(always)]
    unsafe fn high<V: Vector>(bytes: V) -> V {
        // SAFETY: the caller's promise.
        unsafe {
            let sixteenth = V::splat(1.0 / 16.0);
            bytes
                .mul_add(sixteenth, V::splat(-7.5 / 16.0))
                .add(V::splat(WHOLE))
                .add(V::splat(-WHOLE))
        }
    }
}

impl Scales for NestedNibbles {
    const TOGETHER: usize = 8;
    const HEAD: usize = 2 * HALVES;
    const BYTES: usize = 2 * LANES;
    const PARTS: usize = 2;
    const MINIMA: bool = true;
    type Decoded = Decoded<2>;

    #[inline(always)]
    unsafe fn scale<V: Vector>(head: *const u8, scales: *const u8, part: usize) -> V {
        // SAFETY: the caller's promise.
        unsafe {
            let bytes = V::load_u8(scales.add(part * LANES));
            let low = Self::high(bytes).mul_add(V::splat(-16.0), bytes);
            V::load_f16(head).mul(low)
        }
    }

    #[inline(always)]
    unsafe fn minimum<V: Vector>(head: *const u8, scales: *const u8, part: usize) -> V {
        // SAFETY: the caller's promise.
        unsafe {
            let bytes = V::load_u8(scales.add(part * LANES));
            V::load_f16(head.add(HALVES)).mul(Self::high(bytes))
        }
    }
}

/// None behind a group; before each eight `[16]` f16, in units of which scales are, and `[3, 16]` u32: of each
/// four bits a group. In the first word they are the low bits of the scales of first halves, in the second
/// those of second halves, and in the third two high bits of both. Scales are less 32.
pub(super) struct NestedSixes;

/// Bytes of the weights of a group of three bits.
const THREES: usize = 3 * LANES * size_of::<u32>();

impl Scales for NestedSixes {
    const TOGETHER: usize = 8;
    const HEAD: usize = HALVES + THREES;
    const BYTES: usize = 0;
    const PARTS: usize = 2;
    const INTEGERS: bool = true;
    type Decoded = Decoded<1>;

    #[inline(always)]
    unsafe fn scale<V: Vector>(head: *const u8, _scales: *const u8, _part: usize) -> V {
        // SAFETY: the caller's promise.
        unsafe { V::load_f16(head) }
    }

    #[inline(always)]
    unsafe fn integer<V: Vector>(head: *const u8, scales: *const u8, part: usize) -> V::Integers {
        const WORD: usize = LANES * size_of::<u32>();
        // Which group of the eight it is behind.
        let group = (scales as usize - head as usize - Self::HEAD) / THREES - 1;
        let at = 4 * group;
        // SAFETY: the caller's promise.
        unsafe {
            let words = head.add(HALVES);
            let low = V::numbers(words.add(part * WORD), at, 15);
            let high = V::numbers(words.add(2 * WORD), at + 2 * part, 3);
            let high = V::multiply_i32(high, V::splat_i32(16));
            V::add_i32(V::add_i32(high, low), V::splat_i32(-32))
        }
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

//! The stored formats: how a column of a block becomes a vector.

use super::LANES;
use super::vector::{Vector, nibble_factor};
use crate::quantise::GROUP;

/// Columns that are unrolled together.
pub(super) const STEP: usize = 8;

/// A stored format as types see it; [`Format`](super::Format) is its value.
///
/// Columns come in groups: those that share a scale, or single ones.
pub(super) trait StoredFormat: 'static {
    /// Columns to a group, a multiple of [`STEP`] or 1.
    const GROUP: usize;
    /// Bytes of [`STEP`] columns of a block.
    const STEP_BYTES: usize;
    /// Whether columns may be in memory, and are worth prefetching.
    const FAR: bool = true;
    /// Whether groups have scales.
    const SCALED: bool = false;
    /// Whether columns are nibbles, which some vectors leave in place.
    const NIBBLES: bool = false;

    /// Column `i` of the step that starts at `step`, before scaling.
    ///
    /// # Safety
    ///
    /// As for [`Vector`]; `i` is a constant after inlining, less than [`STEP`].
    unsafe fn column<V: Vector>(step: *const u8, i: usize) -> V;
}

/// Whether columns of `F` come as `(q + 8) / nibble_factor(i)`.
pub(super) const fn in_place<V: Vector, F: StoredFormat>() -> bool {
    F::NIBBLES && V::NIBBLES_IN_PLACE
}

/// What [`Widen`] leaves: [`F32`] in the L1 cache.
pub(super) struct Panel;
pub(super) struct F32;
pub(super) struct Bf16;
pub(super) struct F16;
pub(super) struct Int8;
pub(super) struct Int4;

impl StoredFormat for Panel {
    const GROUP: usize = 1;
    const STEP_BYTES: usize = F32::STEP_BYTES;
    const FAR: bool = false;

    #[inline(always)]
    unsafe fn column<V: Vector>(step: *const u8, i: usize) -> V {
        // SAFETY: as the caller promises.
        unsafe { V::load(step.add(i * LANES * 4).cast()) }
    }
}

impl StoredFormat for F32 {
    const GROUP: usize = 1;
    const STEP_BYTES: usize = STEP * LANES * 4;

    #[inline(always)]
    unsafe fn column<V: Vector>(step: *const u8, i: usize) -> V {
        // SAFETY: as the caller promises.
        unsafe { V::load(step.add(i * LANES * 4).cast()) }
    }
}

impl StoredFormat for Bf16 {
    const GROUP: usize = 1;
    const STEP_BYTES: usize = STEP * LANES * 2;

    #[inline(always)]
    unsafe fn column<V: Vector>(step: *const u8, i: usize) -> V {
        // SAFETY: as the caller promises.
        unsafe { V::load_bf16(step.add(i * LANES * 2)) }
    }
}

impl StoredFormat for F16 {
    const GROUP: usize = 1;
    const STEP_BYTES: usize = STEP * LANES * 2;

    #[inline(always)]
    unsafe fn column<V: Vector>(step: *const u8, i: usize) -> V {
        // SAFETY: as the caller promises.
        unsafe { V::load_f16(step.add(i * LANES * 2)) }
    }
}

impl StoredFormat for Int8 {
    const GROUP: usize = GROUP;
    const STEP_BYTES: usize = STEP * LANES;
    const SCALED: bool = true;

    #[inline(always)]
    unsafe fn column<V: Vector>(step: *const u8, i: usize) -> V {
        // SAFETY: as the caller promises.
        unsafe { V::load_i8(step.add(i * LANES)) }
    }
}

impl StoredFormat for Int4 {
    const GROUP: usize = GROUP;
    const STEP_BYTES: usize = LANES * 4;
    const SCALED: bool = true;
    const NIBBLES: bool = true;

    #[inline(always)]
    unsafe fn column<V: Vector>(step: *const u8, i: usize) -> V {
        // SAFETY: as the caller promises.
        unsafe { V::nibble(step, i) }
    }
}

/// Some groups of one block of a scaled format, to be widened and scaled into a [`Panel`]
/// `[columns, 16]`.
pub(super) struct Widen {
    pub weights: *const u8,
    pub scales: *const u16,
    pub groups: usize,
    pub panel: *mut f32,
}

impl Widen {
    /// # Safety
    ///
    /// As for [`Vector`].
    #[inline(always)]
    pub unsafe fn run<V: Vector, F: StoredFormat>(&self) {
        const STEPS: usize = GROUP / STEP;
        // SAFETY: the caller's promise covers every column of the groups and of the panel.
        unsafe {
            for group in 0..self.groups {
                let scale = V::load_f16(self.scales.add(group * LANES).cast());
                let centre = scale.mul(V::splat(-8.0));
                for step in group * STEPS..(group + 1) * STEPS {
                    let from = self.weights.add(step * F::STEP_BYTES);
                    let to = self.panel.add(step * STEP * LANES);
                    unroll!(I, {
                        let column = F::column::<V>(from, I);
                        let weights = if const { in_place::<V, F>() } {
                            column.mul_add(scale.mul(V::splat(nibble_factor(I))), centre)
                        } else {
                            column.mul(scale)
                        };
                        weights.store(to.add(I * LANES));
                    });
                }
            }
        }
    }
}

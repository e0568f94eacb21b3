//! RMS norm (Zhang & Sennrich), layer norm (Ba et al.), and the rounding of what meets weights in bfloat16.

use crate::dispatch::enter;

use crate::vector::{Job, Vector};
use crate::{Isa, LANES};

/// One row that is normed: `y[i] = x[i] / sqrt(mean(x²) + epsilon) * (offset + weight[i]) + bias[i]`, where the mean is
/// taken off `x` first if it is centred.
///
/// All sums are added up in one order, whatever the other rows are.
#[derive(Clone, Copy, Debug)]
pub struct Norm {
    /// `[columns]`
    pub x: *const f32,
    /// `[columns]`; null for zeros.
    pub weight: *const f32,
    /// `[columns]`; null for none.
    pub bias: *const f32,
    /// `[columns]`; may be `x`.
    pub y: *mut f32,
    /// Elements of the row.
    pub columns: usize,
    /// What keeps the root from zero.
    pub epsilon: f32,
    /// What is added to each weight.
    pub offset: f32,
    /// Whether the mean is taken off first.
    pub centred: bool,
    /// Whether it is added to what `y` holds, and does not take its place.
    pub add: bool,
}

/// Norms a row.
///
/// # Safety
///
/// The CPU has `isa`, every pointer is valid for what its field states, and nothing else accesses `y`
/// during the call.
pub unsafe fn norm(isa: Isa, of: &Norm) {
    // SAFETY: the caller's promise.
    unsafe { enter(isa, of) }
}

/// Sums that are added to in turn, so that one does not wait for the other.
const SUMS: usize = 4;

impl<V: Vector> Job<V> for Norm {
    #[inline(always)]
    unsafe fn run(&self) {
        let Self { x, weight, bias, y, columns, epsilon, offset, centred, add } = *self;
        // SAFETY: the caller's promise: elements of the row.
        unsafe {
            // Nothing, where it is not centred: adding it changes no bit.
            let mut less = -0.0;
            if centred {
                let all = sum::<V>(columns, |at, sum| V::load(x.add(at)).add(sum), |at| *x.add(at));
                less = -all / columns as f32;
            }
            let vector = |at, sum| {
                let x = V::load(x.add(at)).add(V::splat(less));
                x.mul_add(x, sum)
            };
            let one = |at| {
                let x = *x.add(at) + less;
                x * x
            };
            let sum = sum::<V>(columns, vector, one);
            let factor = 1.0 / (sum / columns as f32 + epsilon).sqrt();
            let weight = |at| if weight.is_null() { 0.0 } else { *weight.add(at) };
            let normed = |at| (*x.add(at) + less) * factor * (offset + weight(at));
            if add {
                for at in 0..columns {
                    *y.add(at) += normed(at);
                }
            } else {
                for at in 0..columns {
                    *y.add(at) = normed(at);
                }
            }
            if !bias.is_null() {
                for at in 0..columns {
                    *y.add(at) += *bias.add(at);
                }
            }
        }
    }
}

/// The sum of `x[i] * y[i]`, in one order.
///
/// # Safety
///
/// As for [`Vector`]; both pointers are valid for `len` elements.
#[inline(always)]
pub(crate) unsafe fn dot<V: Vector>(x: *const f32, y: *const f32, len: usize) -> f32 {
    // SAFETY: the caller's promise: `len` elements.
    unsafe {
        let vector = |at, sum| V::load(x.add(at)).mul_add(V::load(y.add(at)), sum);
        sum::<V>(len, vector, |at| *x.add(at) * *y.add(at))
    }
}

/// The sum of so many terms, in one order: `vector` adds those of a vector to a sum, `one` is a single one.
///
/// # Safety
///
/// As for [`Vector`].
#[inline(always)]
unsafe fn sum<V: Vector>(
    len: usize,
    vector: impl Fn(usize, V) -> V,
    one: impl Fn(usize) -> f32,
) -> f32 {
    let whole = len / (SUMS * LANES) * (SUMS * LANES);
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [V::splat(0.0); SUMS];
        for at in (0..whole).step_by(SUMS * LANES) {
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum = vector(at + i * LANES, *sum);
            }
        }
        let mut lanes = [0.0; LANES];
        sums[0].add(sums[1]).add(sums[2].add(sums[3])).store(lanes.as_mut_ptr());
        for half in [8, 4, 2, 1] {
            for lane in 0..half {
                lanes[lane] += lanes[lane + half];
            }
        }
        let mut sum = lanes[0];
        for at in whole..len {
            sum += one(at);
        }
        sum
    }
}

/// Rounds `len` numbers at `from` to bfloat16, to nearest even.
///
/// # Safety
///
/// The CPU has `isa`, both pointers are valid for `len` elements, and nothing else accesses `to`
/// during the call.
pub unsafe fn round_to_bf16(isa: Isa, from: *const f32, to: *mut u16, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { enter(isa, &Narrow { from, to, len }) }
}

struct Narrow {
    from: *const f32,
    to: *mut u16,
    len: usize,
}

impl<V: Vector> Job<V> for Narrow {
    #[inline(always)]
    unsafe fn run(&self) {
        // SAFETY: the caller's promise.
        unsafe {
            let from = std::slice::from_raw_parts(self.from, self.len);
            let to = std::slice::from_raw_parts_mut(self.to, self.len);
            for (to, from) in to.iter_mut().zip(from) {
                let bits = from.to_bits();
                let even = (bits >> 16) & 1;
                let rounded = (bits.wrapping_add(0x7fff + even) >> 16) as u16;
                // Rounding could carry NaN to infinity.
                let quiet = (bits >> 16) as u16 | 0x40;
                *to = if from.is_nan() { quiet } else { rounded };
            }
        }
    }
}

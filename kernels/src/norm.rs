//! RMS norm (Zhang & Sennrich), and the rounding of what meets weights in bfloat16.

use crate::dispatch::enter;

use crate::vector::{Job, Vector};
use crate::{Isa, LANES};

/// One row that is normed: `y[i] = x[i] / sqrt(mean(x²) + epsilon) * weight[i]`.
///
/// The squares are added up in one order, whatever the other rows are.
#[derive(Clone, Copy, Debug)]
pub struct RmsNorm {
    /// `[columns]`
    pub x: *const f32,
    /// `[columns]`
    pub weight: *const f32,
    /// `[columns]`; may be `x`.
    pub y: *mut f32,
    /// Elements of the row.
    pub columns: usize,
    /// What keeps the root from zero.
    pub epsilon: f32,
}

/// Norms a row.
///
/// # Safety
///
/// The CPU has `isa`, every pointer is valid for what its field states, and nothing else accesses `y`
/// during the call.
pub unsafe fn rms_norm(isa: Isa, of: &RmsNorm) {
    // SAFETY: the caller's promise.
    unsafe { enter(isa, of) }
}

/// Sums that are added to in turn, so that one does not wait for the other.
const SUMS: usize = 4;

impl<V: Vector> Job<V> for RmsNorm {
    #[inline(always)]
    unsafe fn run(&self) {
        let Self { x, weight, y, columns, epsilon } = *self;
        let whole = columns / (SUMS * LANES) * (SUMS * LANES);
        // SAFETY: the caller's promise: elements of the row.
        unsafe {
            let mut sums = [V::splat(0.0); SUMS];
            for at in (0..whole).step_by(SUMS * LANES) {
                for (i, sum) in sums.iter_mut().enumerate() {
                    let x = V::load(x.add(at + i * LANES));
                    *sum = x.mul_add(x, *sum);
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
            for at in whole..columns {
                let x = *x.add(at);
                sum += x * x;
            }
            let factor = 1.0 / (sum / columns as f32 + epsilon).sqrt();
            for at in 0..columns {
                *y.add(at) = *x.add(at) * factor * *weight.add(at);
            }
        }
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

#[cfg(test)]
mod tests {
    use rand_chacha::ChaCha8Rng;
    use rand_chacha::rand_core::{Rng, SeedableRng};

    use super::*;

    fn random(rng: &mut ChaCha8Rng, n: usize) -> Vec<f32> {
        (0..n).map(|_| rng.next_u32() as f32 / (1_u64 << 31) as f32 - 1.0).collect()
    }

    #[test]
    fn rows_of_any_length_match_f64() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        for columns in [1, 5, 16, 50, 64, 96, 200, 2048] {
            let (x, weight) = (random(&mut rng, columns), random(&mut rng, columns));
            let epsilon = 1e-5;
            let mean = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / columns as f64;
            let root = (mean + f64::from(epsilon)).sqrt();
            for isa in Isa::all_here() {
                let mut y = vec![f32::NAN; columns];
                let of = RmsNorm {
                    x: x.as_ptr(),
                    weight: weight.as_ptr(),
                    y: y.as_mut_ptr(),
                    columns,
                    epsilon,
                };
                // SAFETY: this CPU has the instructions, and all are as long as stated.
                unsafe { rms_norm(isa, &of) };
                for ((&y, &x), &weight) in y.iter().zip(&x).zip(&weight) {
                    let expected = f64::from(x) / root * f64::from(weight);
                    let error = (f64::from(y) - expected).abs();
                    assert!(error <= 1e-6, "{isa:?} {columns}: {y}, not {expected}");
                }
            }
        }
    }

    #[test]
    fn bfloat16_is_the_nearest_and_keeps_what_is_no_number() {
        let mut numbers = random(&mut ChaCha8Rng::seed_from_u64(2), 1000);
        numbers.extend([0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN_POSITIVE]);
        // Halfway between two, above an even one and above an odd one.
        numbers.extend([0x3f80_8000, 0x3f81_8000, 0x3f80_8001, 0x0000_8001].map(f32::from_bits));
        numbers.extend([f32::NAN, f32::from_bits(0x7f80_0001), f32::from_bits(0xffff_ffff)]);
        for isa in Isa::all_here() {
            let mut rounded = vec![0; numbers.len()];
            // SAFETY: this CPU has the instructions, and both are as long.
            unsafe {
                round_to_bf16(isa, numbers.as_ptr(), rounded.as_mut_ptr(), numbers.len());
            }
            for (&number, &rounded) in numbers.iter().zip(&rounded) {
                let expected = half::bf16::from_f32(number);
                let found = half::bf16::from_bits(rounded);
                let same =
                    found == expected && found.is_sign_negative() == number.is_sign_negative();
                assert!(same || found.is_nan() && number.is_nan(), "{isa:?}: {number} {found}");
            }
        }
    }
}

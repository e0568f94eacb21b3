//! The exponential function, sixteen at a time.

use crate::vector::Vector;

/// e to the power of numbers that are not positive; 0 below -87.7. `x = n ln 2 + rest`, and a
/// series for the rest, within half of ln 2.
///
/// # Safety
///
/// As for [`Vector`].
#[inline(always)]
pub(crate) unsafe fn exp<V: Vector>(x: V) -> V {
    const MAGIC: f32 = 12_582_912.0; // 1.5 * 2^23: a sum with it is rounded to a whole number.
    const LN_2: [f32; 2] = [355.0 / 512.0, -2.121_944_4e-4]; // n times the first is exact.
    const SERIES: [f32; 8] =
        [1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];
    // SAFETY: the caller's promise.
    unsafe {
        let x = V::splat(-88.0).max(x);
        let shifted = x.mul_add(V::splat(std::f32::consts::LOG2_E), V::splat(MAGIC));
        let n = shifted.add(V::splat(-MAGIC));
        let rest = n.mul_add(V::splat(-LN_2[0]), x);
        let rest = n.mul_add(V::splat(-LN_2[1]), rest);
        let mut power = V::splat(SERIES[0]);
        for factor in &SERIES[1..] {
            power = power.mul_add(rest, V::splat(*factor));
        }
        power.mul(shifted.power_of_two())
    }
}

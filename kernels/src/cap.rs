//! Numbers that are bent so that they stay below a limit: `limit * tanh(x / limit)`.

use crate::attention::exp;
use crate::dispatch::enter;
use crate::vector::{Job, Vector};
use crate::{Isa, LANES};

/// Numbers that are scaled, then capped.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// `[len]`, changed in place.
    pub x: *mut f32,
    /// Elements.
    pub len: usize,
    /// What each is multiplied with.
    pub factor: f32,
    /// What each stays below then, on both sides; 0 for no limit.
    pub cap: f32,
}

/// Scales and caps, each element by itself.
///
/// # Safety
///
/// The CPU has `isa`, `x` is valid for `len` elements, and nothing else accesses them during the call.
pub unsafe fn scale(isa: Isa, of: &Scale) {
    // SAFETY: the caller's promise.
    unsafe { enter(isa, of) }
}

impl<V: Vector> Job<V> for Scale {
    #[inline(always)]
    unsafe fn run(&self) {
        // SAFETY: the caller's promise.
        unsafe {
            let x = std::slice::from_raw_parts_mut(self.x, self.len);
            for x in x.iter_mut() {
                *x *= self.factor;
            }
            if self.cap > 0.0 {
                cap::<V>(x, self.cap);
            }
        }
    }
}

/// Caps each of `x`. By `tanh(x) = (1 - p) / (1 + p)`, where `p` is `exp(-2x)`.
///
/// # Safety
///
/// As for [`Vector`].
#[inline(always)]
pub(crate) unsafe fn cap<V: Vector>(x: &mut [f32], limit: f32) {
    for x in x.chunks_mut(LANES) {
        let mut powers = [0.0; LANES];
        for (power, x) in powers.iter_mut().zip(&*x) {
            *power = -2.0 * (x / limit).abs();
        }
        // SAFETY: the caller's promise.
        unsafe { exp(V::load(powers.as_ptr())).store(powers.as_mut_ptr()) };
        for (x, power) in x.iter_mut().zip(powers) {
            *x = ((1.0 - power) / (1.0 + power)).copysign(*x) * limit;
        }
    }
}

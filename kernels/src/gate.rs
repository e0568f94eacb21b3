//! The gate of an MLP: `activation(gate) * up` (Shazeer, GLU variants), gpt-oss's own form of it, and what an MLP
//! without one has in its place.

use crate::attention::exp;
use crate::dispatch::enter;

use crate::vector::{Job, Vector};
use crate::{Isa, LANES};

/// What a gate goes through: itself times a sigmoid of something, where there is one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// GELU by `tanh`: `x * sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3))`.
    GeluTanh,
    /// `x * sigmoid(alpha * x)` of a gate that is at most `limit`; what it is multiplied with is one more than
    /// up, which stays within `limit` on both sides.
    Clamped {
        /// How steep the sigmoid is.
        alpha: f32,
        /// Above 0.
        limit: f32,
    },
    /// `max(x, 0)^2` (So et al., Primer), times nothing.
    ReluSquared,
    /// xIELU (Huang & Schlag), times nothing: `positive x^2 + beta x` above 0, else
    /// `negative (exp(min(x, epsilon)) - 1 - x) + beta x`.
    Xielu {
        /// How steep it is above 0.
        positive: f32,
        /// How steep it is below.
        negative: f32,
        /// The line beside both.
        beta: f32,
        /// Below 0.
        epsilon: f32,
    },
}

impl Activation {
    /// Whether there is something that it is multiplied with.
    pub fn is_gated(self) -> bool {
        !matches!(self, Self::ReluSquared | Self::Xielu { .. })
    }
}

/// Some elements of a row.
#[derive(Clone, Copy, Debug)]
pub struct Gate {
    /// Of the gate.
    pub activation: Activation,
    /// `[len]`
    pub gate: *const f32,
    /// `[len]`; any that is valid, where nothing is [gated](Activation::is_gated).
    pub up: *const f32,
    /// `[len]`
    pub y: *mut f32,
    /// Elements.
    pub len: usize,
}

/// Writes `activation(gate) * up`, or `activation(gate)` where it is times nothing, each element by itself.
///
/// # Safety
///
/// The CPU has `isa`, every pointer is valid for `len` elements, and nothing else accesses `y` during
/// the call.
pub unsafe fn gate(isa: Isa, of: &Gate) {
    // SAFETY: the caller's promise.
    unsafe { enter(isa, of) }
}

/// `sqrt(2 / pi)`, and how much of the cube there is beside `x`.
const ROOT: f32 = 0.797_884_6;
const CUBIC: f32 = 0.044_715;

/// `x`, or `limit` where it is above; what is no number stays so.
#[inline(always)]
fn at_most(x: f32, limit: f32) -> f32 {
    if x > limit { limit } else { x }
}

/// The sigmoid of each: of the exponential of a number that is not positive, which cannot become infinite.
///
/// # Safety
///
/// As for [`Vector`].
#[inline(always)]
pub(crate) unsafe fn sigmoid<V: Vector>(x: &[f32; LANES]) -> [f32; LANES] {
    let mut y = [0.0; LANES];
    for (y, x) in y.iter_mut().zip(x) {
        *y = -x.abs();
    }
    // SAFETY: the caller's promise.
    unsafe { exp(V::load(y.as_ptr())).store(y.as_mut_ptr()) };
    for (y, x) in y.iter_mut().zip(x) {
        let above = if *x >= 0.0 { 1.0 } else { *y };
        *y = above / (1.0 + *y);
    }
    y
}

impl<V: Vector> Job<V> for Gate {
    #[inline(always)]
    unsafe fn run(&self) {
        let Self { activation, gate, up, y, len } = *self;
        // SAFETY: the caller's promise.
        unsafe {
            let gate = std::slice::from_raw_parts(gate, len);
            let up = std::slice::from_raw_parts(up, len);
            let y = std::slice::from_raw_parts_mut(y, len);
            // Loops that LLVM takes many elements of at once.
            match activation {
                Activation::Silu => {
                    for (y, x) in y.iter_mut().zip(gate) {
                        *y = -x.abs();
                    }
                }
                Activation::GeluTanh => {
                    for (y, x) in y.iter_mut().zip(gate) {
                        let inner = x + CUBIC * (x * x * x);
                        *y = -(2.0 * ROOT * inner).abs();
                    }
                }
                Activation::Clamped { alpha, limit } => {
                    for (y, x) in y.iter_mut().zip(gate) {
                        *y = -(alpha * at_most(*x, limit)).abs();
                    }
                }
                Activation::ReluSquared => {
                    for (y, x) in y.iter_mut().zip(gate) {
                        // What is no number stays so.
                        *y = if *x < 0.0 { 0.0 } else { x * x };
                    }
                    return;
                }
                Activation::Xielu { epsilon, .. } => {
                    for (y, x) in y.iter_mut().zip(gate) {
                        *y = at_most(*x, epsilon);
                    }
                }
            }
            let (vectors, rest) = y.as_chunks_mut::<LANES>();
            for powers in vectors {
                exp(V::load(powers.as_ptr())).store(powers.as_mut_ptr());
            }
            let mut last = [0.0; LANES];
            last[..rest.len()].copy_from_slice(rest);
            exp(V::load(last.as_ptr())).store(last.as_mut_ptr());
            rest.copy_from_slice(&last[..rest.len()]);
            // Of the exponential of a number that is not positive, which cannot become infinite.
            let gated = |gate: f32, power: f32| {
                let above = if gate >= 0.0 { 1.0 } else { power };
                gate * (above / (1.0 + power))
            };
            match activation {
                Activation::Silu | Activation::GeluTanh => {
                    for ((y, gate), up) in y.iter_mut().zip(gate).zip(up) {
                        *y = gated(*gate, *y) * up;
                    }
                }
                Activation::Clamped { limit, .. } => {
                    for ((y, gate), up) in y.iter_mut().zip(gate).zip(up) {
                        let up = -at_most(-at_most(*up, limit), limit);
                        *y = gated(at_most(*gate, limit), *y) * (up + 1.0);
                    }
                }
                Activation::Xielu { positive, negative, beta, epsilon } => {
                    for (y, x) in y.iter_mut().zip(gate) {
                        let least = at_most(*x, epsilon);
                        // `exp(least) - 1 - least`, near 0 by its series, whose first terms cancel there.
                        let series = 1.0 / 720.0 + least * (1.0 / 5040.0);
                        let series = 1.0 / 24.0 + least * (1.0 / 120.0 + least * series);
                        let series = 0.5 + least * (1.0 / 6.0 + least * series);
                        let far = *y - 1.0 - least;
                        let curved = if least > -0.5 { least * least * series } else { far };
                        let below = negative * (curved + (least - x));
                        let above = positive * (x * x);
                        *y = beta * x + if *x > 0.0 { above } else { below };
                    }
                }
                Activation::ReluSquared => {}
            }
        }
    }
}

//! The gate of an MLP: `activation(gate) * up` (Shazeer, GLU variants), gpt-oss's own form of it, and an MLP's activation
//! where there is no gate.

use crate::attention::exp;
use crate::dispatch::enter;

use crate::vector::{Job, Vector};
use crate::{Isa, LANES};

/// What a gate goes through: mostly itself times a sigmoid of something.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// GELU by `tanh`: `x * sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3))`.
    GeluTanh,
    /// GELU (Hendrycks & Gimpel): `x` times the probability that a normal variable is below it.
    Gelu,
    /// `x * sigmoid(alpha * x)` of a gate that is at most `limit`; what it is multiplied with is one more than
    /// up, which stays within `limit` on both sides.
    Clamped {
        /// How steep the sigmoid is.
        alpha: f32,
        /// Above 0.
        limit: f32,
    },
    /// `max(x, 0)^2` (So et al., Primer).
    ReluSquared,
    /// xIELU (Huang & Schlag): `positive x^2 + beta x` above 0, else
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

/// Some elements of a row.
#[derive(Clone, Copy, Debug)]
pub struct Gate {
    /// Of the gate.
    pub activation: Activation,
    /// `[len]`
    pub gate: *const f32,
    /// `[len]`; null for no gate: then it is up that goes through the activation, and times nothing.
    pub up: *const f32,
    /// `[len]`
    pub y: *mut f32,
    /// Elements.
    pub len: usize,
}

/// Writes `activation(gate) * up`, or `activation(gate)` where there is no `up`, each element by itself.
///
/// # Safety
///
/// The CPU has `isa`, every pointer but a null `up` is valid for `len` elements, and nothing else accesses `y` during the
/// call.
pub unsafe fn gate(isa: Isa, of: &Gate) {
    // SAFETY: the caller's promise.
    unsafe { enter(isa, of) }
}

/// `sqrt(2 / pi)`, and how much of the cube there is beside `x`.
const ROOT: f32 = 0.797_884_6;
const CUBIC: f32 = 0.044_715;

/// What is above `z` of a normal distribution is `exp(-z²/2)` times a polynomial of `t = 1 / (1 + REACH z)`, for `z` of 0
/// and more: these are its coefficients, of `t` and each next power. Interpolated at Chebyshev's nodes; `z` times the
/// difference is below 3e-8.
const TAIL: [f32; 8] = [
    0.095_746_62,
    0.095_684_93,
    0.091_544_42,
    0.068_305_84,
    0.108_452_81,
    -0.054_700_57,
    0.146_516_75,
    -0.051_550_92,
];
const REACH: f32 = 0.24;

/// `f(x, y) * up`, or that times nothing.
#[inline(always)]
fn times(y: &mut [f32], x: &[f32], up: Option<&[f32]>, f: impl Fn(f32, f32) -> f32) {
    let pairs = y.iter_mut().zip(x);
    match up {
        Some(up) => pairs.zip(up).for_each(|((y, x), up)| *y = f(*x, *y) * up),
        None => pairs.for_each(|(y, x)| *y = f(*x, *y)),
    }
}

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
            let up = (!up.is_null()).then(|| std::slice::from_raw_parts(up, len));
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
                Activation::Gelu => {
                    for (y, x) in y.iter_mut().zip(gate) {
                        *y = -0.5 * (x * x);
                    }
                }
                Activation::Clamped { alpha, limit } => {
                    for (y, x) in y.iter_mut().zip(gate) {
                        *y = -(alpha * at_most(*x, limit)).abs();
                    }
                }
                // What is no number stays so.
                Activation::ReluSquared => {
                    return times(y, gate, up, |x, _| if x < 0.0 { 0.0 } else { x * x });
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
                Activation::Silu | Activation::GeluTanh => times(y, gate, up, gated),
                Activation::Gelu => times(y, gate, up, |x, power| {
                    let t = 1.0 / (1.0 + REACH * x.abs());
                    let series = TAIL.iter().rev().fold(0.0, |sum, term| (sum + term) * t);
                    let tail = power * series;
                    x * if x >= 0.0 { 1.0 - tail } else { tail }
                }),
                Activation::Clamped { limit, .. } => {
                    let gated = |x, power| gated(at_most(x, limit), power);
                    match up {
                        None => times(y, gate, None, gated),
                        Some(up) => {
                            for ((y, x), up) in y.iter_mut().zip(gate).zip(up) {
                                let up = -at_most(-at_most(*up, limit), limit);
                                *y = gated(*x, *y) * (up + 1.0);
                            }
                        }
                    }
                }
                Activation::Xielu { positive, negative, beta, epsilon } => {
                    times(y, gate, up, |x, power| {
                        let least = at_most(x, epsilon);
                        // `exp(least) - 1 - least`, near 0 by its series, whose first terms cancel there.
                        let series = 1.0 / 720.0 + least * (1.0 / 5040.0);
                        let series = 1.0 / 24.0 + least * (1.0 / 120.0 + least * series);
                        let series = 0.5 + least * (1.0 / 6.0 + least * series);
                        let far = power - 1.0 - least;
                        let curved = if least > -0.5 { least * least * series } else { far };
                        let below = negative * (curved + (least - x));
                        let above = positive * (x * x);
                        beta * x + if x > 0.0 { above } else { below }
                    });
                }
                Activation::ReluSquared => {}
            }
        }
    }
}

//! The gate of an MLP: `silu(gate) * up` (Shazeer, GLU variants).

use crate::attention::exp;
use crate::dispatch::enter;

use crate::vector::{Job, Vector};
use crate::{Isa, LANES};

/// Some elements of a row.
#[derive(Clone, Copy, Debug)]
pub struct SiluGate {
    /// `[len]`
    pub gate: *const f32,
    /// `[len]`
    pub up: *const f32,
    /// `[len]`
    pub y: *mut f32,
    /// Elements.
    pub len: usize,
}

/// Writes `gate / (1 + exp(-gate)) * up`, each element by itself.
///
/// # Safety
///
/// The CPU has `isa`, every pointer is valid for `len` elements, and nothing else accesses `y` during
/// the call.
pub unsafe fn silu_gate(isa: Isa, of: &SiluGate) {
    // SAFETY: the caller's promise.
    unsafe { enter(isa, of) }
}

impl<V: Vector> Job<V> for SiluGate {
    #[inline(always)]
    unsafe fn run(&self) {
        let Self { gate, up, y, len } = *self;
        // SAFETY: the caller's promise.
        unsafe {
            let gate = std::slice::from_raw_parts(gate, len);
            let up = std::slice::from_raw_parts(up, len);
            let y = std::slice::from_raw_parts_mut(y, len);
            // Loops that LLVM takes many elements of at once.
            for (y, gate) in y.iter_mut().zip(gate) {
                *y = -gate.abs();
            }
            let (vectors, rest) = y.as_chunks_mut::<LANES>();
            for powers in vectors {
                exp(V::load(powers.as_ptr())).store(powers.as_mut_ptr());
            }
            let mut last = [0.0; LANES];
            last[..rest.len()].copy_from_slice(rest);
            exp(V::load(last.as_ptr())).store(last.as_mut_ptr());
            rest.copy_from_slice(&last[..rest.len()]);
            for ((y, gate), up) in y.iter_mut().zip(gate).zip(up) {
                // The exponential of a number that is not positive, which cannot become infinite.
                let power = *y;
                let above = if *gate >= 0.0 { 1.0 } else { power };
                *y = gate * (above / (1.0 + power)) * up;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_of_any_size_match_f64() {
        let mut gate: Vec<f32> = (-2000..2000).map(|i| i as f32 * 0.01).collect();
        gate.extend([-1e30, -200.0, -88.5, 88.5, 200.0, 1e30, -0.0, 0.0]);
        for isa in Isa::all_here() {
            for len in [gate.len(), 1, 5, 16, 17] {
                let from = gate.len() - len;
                let (gate, up) = (&gate[from..], vec![-1.5; len]);
                let mut y = vec![f32::NAN; len];
                let of = SiluGate { gate: gate.as_ptr(), up: up.as_ptr(), y: y.as_mut_ptr(), len };
                // SAFETY: this CPU has the instructions, and all are as long.
                unsafe { silu_gate(isa, &of) };
                for (&gate, &y) in gate.iter().zip(&y) {
                    let x = f64::from(gate);
                    let expected = x / (1.0 + (-x).exp()) * -1.5;
                    let error = (f64::from(y) - expected).abs();
                    assert!(
                        error <= 3e-7 * expected.abs() + 1e-35,
                        "{isa:?} {gate}: {y} {expected}"
                    );
                }
            }
        }
    }

    #[test]
    fn what_is_not_a_number_is_not_hidden() {
        for isa in Isa::all_here() {
            for (gate, up) in [(f32::NAN, 1.0), (1.0, f32::NAN), (f32::INFINITY, 1.0)] {
                let mut y = 0.0;
                let of = SiluGate { gate: &gate, up: &up, y: &mut y, len: 1 };
                // SAFETY: this CPU has the instructions, and all are one element.
                unsafe { silu_gate(isa, &of) };
                assert!(!y.is_finite(), "{isa:?}: {gate} {up} gave {y}");
            }
        }
    }
}

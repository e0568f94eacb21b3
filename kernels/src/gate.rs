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

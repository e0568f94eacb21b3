//! Gates of attention's heads: the projection of queries has one behind each head, and its sigmoid is what the
//! head's output is multiplied with.

use crate::dispatch::enter;
use crate::gate::sigmoid;
use crate::scratch::with_scratch;
use crate::vector::{Job, Vector};
use crate::{Isa, LANES};

/// Moves the gates of a row behind all else, in place: of `[heads, 2, head_dim]` and `rest` it makes
/// `[heads, head_dim]`, `rest` and `[heads, head_dim]`.
///
/// # Safety
///
/// `row` is valid for `2 * heads * head_dim + rest` elements, which nothing else accesses during the call.
pub unsafe fn split_gates(row: *mut f32, heads: usize, head_dim: usize, rest: usize) {
    let width = heads * head_dim;
    with_scratch(width, |gates| {
        // SAFETY: elements of the row, and as many of the scratch as there are gates. No query moves behind
        // where it was, so that none is written over before it is read.
        unsafe {
            for head in 0..heads {
                let from = row.add(2 * head * head_dim);
                gates.add(head * head_dim).copy_from_nonoverlapping(from.add(head_dim), head_dim);
                row.add(head * head_dim).copy_from(from, head_dim);
            }
            row.add(width).copy_from(row.add(2 * width), rest);
            row.add(width + rest).copy_from_nonoverlapping(gates, width);
        }
    });
}

/// Multiplies each of `x` with the sigmoid of its gate, each by itself.
///
/// # Safety
///
/// The CPU has `isa`, both pointers are valid for `width` elements, and nothing else accesses `x` during the
/// call.
pub unsafe fn gate_by_sigmoid(isa: Isa, x: *mut f32, gate: *const f32, width: usize) {
    // SAFETY: the caller's promise.
    unsafe { enter(isa, &BySigmoid { x, gate, width }) }
}

struct BySigmoid {
    x: *mut f32,
    gate: *const f32,
    width: usize,
}

impl<V: Vector> Job<V> for BySigmoid {
    #[inline(always)]
    unsafe fn run(&self) {
        // SAFETY: the caller's promise.
        unsafe {
            let x = std::slice::from_raw_parts_mut(self.x, self.width);
            let gate = std::slice::from_raw_parts(self.gate, self.width);
            let (vectors, rest) = x.as_chunks_mut::<LANES>();
            let (gates, last) = gate.as_chunks::<LANES>();
            for (x, gate) in vectors.iter_mut().zip(gates) {
                for (x, share) in x.iter_mut().zip(sigmoid::<V>(gate)) {
                    *x *= share;
                }
            }
            let mut gate = [0.0; LANES];
            gate[..last.len()].copy_from_slice(last);
            for (x, share) in rest.iter_mut().zip(sigmoid::<V>(&gate)) {
                *x *= share;
            }
        }
    }
}

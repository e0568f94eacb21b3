//! The most likely token.

use crate::emit::builder::{Combine, NEG_INF, Value};
use crate::emit::{ElementType, Emitter};

/// What the second stage takes a multiple of; with another number of partial results the compiler
/// gives it to a single thread.
const PARTS: usize = 128;

impl Emitter<'_> {
    /// [`argmax`](Self::argmax) with rows of logits that are whole warps wide, and padded partial
    /// results.
    pub(in crate::emit) fn padded_argmax(&mut self, logits: &Value) -> Value {
        let n = logits.dims()[0];
        let width = [256, 128, 64].into_iter().find(|w| n.is_multiple_of(*w)).unwrap_or(256);
        let logits = self.padded(logits, n.next_multiple_of(width), NEG_INF);
        let dims = [n.div_ceil(width), width];
        let logits = self.b.reshape(&logits, &dims);
        let row = self.b.iota(&dims, 0);
        let by = self.b.splat(width, &dims, ElementType::I32);
        let row = self.b.mul(&row, &by);
        let column = self.b.iota(&dims, 1);
        let index = self.b.add(&row, &column);
        let parts = dims[0].next_multiple_of(PARTS);
        let max = self.b.reduce(&logits, &[1], Combine::Max);
        let max = self.padded(&max, parts, NEG_INF);
        let max = self.b.reduce(&max, &[0], Combine::Max);
        let max = self.b.broadcast(&max, &dims, &[]);
        let is_max = self.b.compare("EQ", &logits, &max);
        let none = self.b.splat(i32::MAX, &dims, ElementType::I32);
        let index = self.b.select(&is_max, &index, &none);
        let index = self.b.reduce(&index, &[1], Combine::Min);
        let index = self.padded(&index, parts, &i32::MAX.to_string());
        let index = self.b.reduce(&index, &[0], Combine::Min);
        self.b.reshape(&index, &[1])
    }

    /// A vector with `value` behind it, up to `length` elements.
    fn padded(&mut self, a: &Value, length: usize, value: &str) -> Value {
        let more = length - a.dims()[0];
        if more == 0 {
            return a.clone();
        }
        let padding = self.b.splat(value, &[more], a.ty.element);
        self.b.concat(&[a.clone(), padding], 0)
    }
}

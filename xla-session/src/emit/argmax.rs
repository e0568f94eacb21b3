//! The most likely token, on the device.

use super::builder::{Combine, NEG_INF, Value};
use super::{ElementType, Emitter, Target};

impl Emitter<'_> {
    /// The index of the largest of `logits`, `[n]`, among the first `valid`; the lowest on ties,
    /// `i32::MAX` when there is none (NaN).
    pub(super) fn argmax(&mut self, logits: &Value, valid: usize) -> Value {
        let n = logits.dims()[0];
        // Two stages, so that the first can run on all threads: rows of the logits, and a multiple
        // of `parts` of what they leave.
        let (width, parts) = match self.target {
            Target::Cuda(tiles) => tiles.argmax(n),
            _ => ((1..=256).rev().find(|w| n.is_multiple_of(*w)).unwrap_or(1), 1),
        };
        let logits = self.padded(logits, width, NEG_INF);
        let dims = [logits.dims()[0] / width, width];
        let logits = self.b.reshape(&logits, &dims);
        let row = self.b.iota(&dims, 0);
        let by = self.b.splat(width, &dims, ElementType::I32);
        let row = self.b.mul(&row, &by);
        let column = self.b.iota(&dims, 1);
        let index = self.b.add(&row, &column);
        let logits = if valid == n {
            logits
        } else {
            let end = self.b.splat(valid, &dims, ElementType::I32);
            let real = self.b.compare("LT", &index, &end);
            let never = self.b.splat(NEG_INF, &dims, ElementType::F32);
            self.b.select(&real, &logits, &never)
        };
        let max = self.b.reduce(&logits, &[1], Combine::Max);
        let max = self.padded(&max, parts, NEG_INF);
        let max = self.b.reduce(&max, &[0], Combine::Max);
        let max = self.kept(max);
        let max = self.b.broadcast(&max, &dims, &[]);
        let is_max = self.b.compare("EQ", &logits, &max);
        let none = self.b.splat(i32::MAX, &dims, ElementType::I32);
        let index = self.b.select(&is_max, &index, &none);
        let index = self.b.reduce(&index, &[1], Combine::Min);
        let index = self.padded(&index, parts, &i32::MAX.to_string());
        let index = self.b.reduce(&index, &[0], Combine::Min);
        self.b.reshape(&index, &[1])
    }

    /// A vector with `value` behind it, up to a multiple of `of` elements.
    fn padded(&mut self, a: &Value, of: usize, value: &str) -> Value {
        let n = a.dims()[0];
        if n.is_multiple_of(of) {
            return a.clone();
        }
        let padding = self.b.splat(value, &[n.next_multiple_of(of) - n], a.ty.element);
        self.joined(&[a.clone(), padding], 0)
    }
}

//! The most likely tokens, on the device.

use super::function::Function;
use crate::emit::builder::{Combine, ElementType, NEG_INF, Value};

impl Function<'_> {
    /// The index of the largest logit of each row of `logits`, `[rows, n]`: the lowest on ties,
    /// `i32::MAX` where one of them is NaN; `[rows]`.
    pub fn argmax(&mut self, logits: &Value) -> Value {
        let &[rows, n] = logits.dims() else { unreachable!("rows of logits") };
        // The first stage takes parts, the second what these leave, a multiple of so many.
        let (width, several) = self.tiles.argmax(rows, n);
        let logits = match n.is_multiple_of(width) {
            true => logits.clone(),
            false => self.padded(logits, width, NEG_INF),
        };
        let dims = [rows, logits.dims()[1] / width, width];
        let logits = self.b.reshape(&logits, &dims);
        let max = self.b.reduce(&logits, &[2], Combine::Max);
        let max = self.padded(&max, several, NEG_INF);
        let max = self.b.reduce(&max, &[1], Combine::Max);
        let max = self.kept(max);
        let part = self.b.iota(&dims, 1);
        let by = self.b.splat(width, &dims, ElementType::I32);
        let part = self.b.mul(&part, &by);
        let column = self.b.iota(&dims, 2);
        let index = self.b.add(&part, &column);
        let max = self.b.broadcast(&max, &dims, &[0]);
        let largest = self.b.compare("EQ", &logits, &max);
        let none = self.b.splat(i32::MAX, &dims, ElementType::I32);
        let index = self.b.select(&largest, &index, &none);
        let index = self.b.reduce(&index, &[2], Combine::Min);
        let index = self.padded(&index, several, &i32::MAX.to_string());
        self.b.reduce(&index, &[1], Combine::Min)
    }

    /// Rows with `value` behind them, up to a multiple of `of` columns, in memory of their own.
    fn padded(&mut self, a: &Value, of: usize, value: &str) -> Value {
        let &[rows, n] = a.dims() else { unreachable!("rows of numbers") };
        if n.is_multiple_of(of) {
            return self.kept(a.clone());
        }
        let padding = self.b.splat(value, &[rows, n.next_multiple_of(of) - n], a.ty.element);
        self.joined(&[a.clone(), padding], 1)
    }
}

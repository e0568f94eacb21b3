//! Rotary embeddings in one dispatch.

use crate::emit::Emitter;
use crate::emit::builder::{Generic, Value};
use crate::emit::rope::Angles;

impl Emitter<'_> {
    /// The rows of `table`, `[positions, half]`, of this call's positions, `[rows, half]`: read by
    /// the dispatch that needs them, where a slice would be a copy of its own.
    pub(in crate::emit) fn rows_from_start(&mut self, table: &Value) -> Value {
        let half = table.dims()[1];
        let into = self.b.empty(&[self.rows, half], None);
        let body = format!(
            "%r = linalg.index 0 : index
             %d = linalg.index 1 : index
             %start = arith.index_cast {} : i32 to index
             %position = arith.addi %start, %r : index
             %angle = tensor.extract {}[%position, %d] : {}
             linalg.yield %angle : f32",
            self.start.name, table.name, table.ty
        );
        self.b.generic(
            &Generic { loops: "r,d", inputs: &[], result: "r,d", body: &body, config: None },
            &into,
        )
    }

    /// Rotates `x`, `[rows, heads, 2, half]`: every element reads its partner too.
    pub(in crate::emit) fn rotate_reading_twice(&mut self, x: &Value, angles: &Angles) -> Value {
        let into = self.b.empty(x.dims(), None);
        let body = format!(
            "%r = linalg.index 0 : index
             %h = linalg.index 1 : index
             %half = linalg.index 2 : index
             %d = linalg.index 3 : index
             %zero = arith.constant 0 : index
             %one = arith.constant 1 : index
             %other = arith.subi %one, %half : index
             %partner = tensor.extract {}[%r, %h, %other, %d] : {}
             %negative = arith.negf %in2 : f32
             %first = arith.cmpi eq, %half, %zero : index
             %sine = arith.select %first, %negative, %in2 : f32
             %straight = arith.mulf %in0, %in1 : f32
             %across = arith.mulf %partner, %sine : f32
             %rotated = arith.addf %straight, %across : f32
             linalg.yield %rotated : f32",
            x.name, x.ty
        );
        self.b.generic(
            &Generic {
                loops: "r,h,p,d",
                inputs: &[(x, "r,h,p,d"), (&angles.cos, "r,d"), (&angles.sin, "r,d")],
                result: "r,h,p,d",
                body: &body,
                config: None,
            },
            &into,
        )
    }
}

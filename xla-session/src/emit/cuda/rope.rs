//! Rotary embeddings in the dispatch that needs them.

use crate::emit::Emitter;
use crate::emit::builder::{Generic, Value};
use crate::emit::rope::Angles;

impl Emitter<'_> {
    /// The first `heads` heads of `x`, `[rows, heads or more, head_dim]`, rotated.
    pub(in crate::emit) fn rotated_heads(
        &mut self,
        x: &Value,
        heads: usize,
        angles: &Angles,
    ) -> Value {
        let into = self.b.empty(&[self.rows, heads, self.config.head_dim], None);
        let body = format!(
            "%row = linalg.index 0 : index
             %head = linalg.index 1 : index
             %column = linalg.index 2 : index
             {}
             linalg.yield %rotated : f32",
            self.rotation(x, angles, &self.start)
        );
        self.b.generic(
            &Generic { loops: "r,h,d", inputs: &[], result: "r,h,d", body: &body, config: None },
            &into,
        )
    }

    /// `%rotated`: the element (`%row`, `%head`, `%column`) of `x`, which is read with its partner
    /// in the other half of the head. Angles are read here too: slices of their tables, and of `x`,
    /// would be copies of their own. The first row is at position `start`.
    pub(super) fn rotation(&self, x: &Value, angles: &Angles, start: &Value) -> String {
        let Angles { cos, sin } = angles;
        let start = match self.capacity {
            None => format!("%start = arith.index_cast {} : i32 to index", start.name),
            // In memory.
            Some(_) => format!(
                "%first = tensor.extract {}[] : {}
                 %start = arith.index_cast %first : i32 to index",
                start.name, start.ty
            ),
        };
        format!(
            "%half = arith.constant {half} : index
             %second = arith.cmpi uge, %column, %half : index
             %down = arith.subi %column, %half : index
             %up = arith.addi %column, %half : index
             %angle = arith.select %second, %down, %column : index
             %partner = arith.select %second, %down, %up : index
             {start}
             %position = arith.addi %start, %row : index
             %cos = tensor.extract {}[%position, %angle] : {}
             %sin = tensor.extract {}[%position, %angle] : {}
             %this = tensor.extract {x}[%row, %head, %column] : {ty}
             %other = tensor.extract {x}[%row, %head, %partner] : {ty}
             %negative = arith.negf %sin : f32
             %sign = arith.select %second, %sin, %negative : f32
             %straight = arith.mulf %this, %cos : f32
             %across = arith.mulf %other, %sign : f32
             %rotated = arith.addf %straight, %across : f32",
            cos.name,
            cos.ty,
            sin.name,
            sin.ty,
            x = x.name,
            ty = x.ty,
            half = self.config.head_dim / 2,
        )
    }
}

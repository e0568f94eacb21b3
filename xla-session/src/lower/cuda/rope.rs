//! Rotary embeddings (Su et al., RoFormer), in Hugging Face's half-split form, in the dispatch that
//! needs them.

use super::Source;
use super::function::Function;
use crate::emit::builder::{Generic, Value};

/// Cosines and sines of the rows.
pub(super) struct Angles<'a> {
    pub cos: &'a Value,
    pub sin: &'a Value,
}

impl Function<'_> {
    /// The first `heads` heads of `x`, `[rows, heads or more, head_dim]`, rotated.
    pub fn rotated(&mut self, x: &Value, heads: usize) -> Value {
        let into = self.b.empty(&[self.rows, heads, self.config.head_dim], None);
        let [cos, sin] = [Source::Cos, Source::Sin].map(|source| self.input(source));
        let body = format!(
            "%row = linalg.index 0 : index
             %head = linalg.index 1 : index
             %column = linalg.index 2 : index
             {}
             linalg.yield %rotated : f32",
            self.rotation(x, &Angles { cos: &cos, sin: &sin })
        );
        self.b.generic(
            &Generic { loops: "r,h,d", inputs: &[], result: "r,h,d", body: &body, config: None },
            &into,
        )
    }

    /// `%rotated`: the element (`%row`, `%head`, `%column`) of `x`, which is read with its partner
    /// in the other half of the head. Angles are read here too: slices of `x` would be copies of their
    /// own.
    pub fn rotation(&self, x: &Value, Angles { cos, sin }: &Angles<'_>) -> String {
        format!(
            "%half = arith.constant {half} : index
             %second = arith.cmpi uge, %column, %half : index
             %down = arith.subi %column, %half : index
             %up = arith.addi %column, %half : index
             %angle = arith.select %second, %down, %column : index
             %partner = arith.select %second, %down, %up : index
             %cos = tensor.extract {}[%row, %angle] : {}
             %sin = tensor.extract {}[%row, %angle] : {}
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

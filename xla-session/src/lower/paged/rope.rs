//! Rotary embeddings (Su et al., RoFormer), in the dispatch that needs them.

use checkpoint::architecture::Rope;

use super::Source;
use super::function::Function;
use crate::emit::builder::{Generic, Value};

/// How a layer rotates, with cosines and sines of the rows.
pub(super) struct Angles<'a> {
    pub rope: &'a Rope,
    pub cos: &'a Value,
    pub sin: &'a Value,
}

impl Function<'_> {
    /// The first `heads` heads of `x`, `[rows, heads or more, head_dim]`, rotated if the layer does.
    pub fn rotated(&mut self, x: &Value, heads: usize, rope: Option<usize>) -> Value {
        let Some(at) = rope else {
            return self.b.slice(x, 1, 0, heads);
        };
        let into = self.b.empty(&[self.rows, heads, x.dims()[2]], None);
        let [cos, sin] = [Source::Cos(at), Source::Sin(at)].map(|source| self.input(source));
        let rope = &self.config.architecture.ropes[at];
        let body = format!(
            "%row = linalg.index 0 : index
             %head = linalg.index 1 : index
             %column = linalg.index 2 : index
             {}
             linalg.yield %rotated : f32",
            self.rotation(x, Some(&Angles { rope, cos: &cos, sin: &sin }))
        );
        self.b.generic(
            &Generic { loops: "r,h,d", inputs: &[], result: "r,h,d", body: &body, config: None },
            &into,
        )
    }

    /// `%rotated`: the element (`%row`, `%head`, `%column`) of `x`, which is read with the other one of its
    /// pair. Angles are read here too: slices of `x` would be copies of their own.
    pub(super) fn rotation(&self, x: &Value, angles: Option<&Angles<'_>>) -> String {
        let (name, ty) = (&x.name, &x.ty);
        let Some(Angles { rope, cos, sin }) = angles else {
            return format!("%rotated = tensor.extract {name}[%row, %head, %column] : {ty}");
        };
        // Elements behind the rotated ones read a pair too, and stay as they are.
        let pair = if rope.interleaved {
            "%two = arith.constant 2 : index
             %one = arith.constant 1 : index
             %within = arith.minui %column, %turned_last : index
             %angle = arith.divui %within, %two : index
             %odd = arith.remui %within, %two : index
             %second = arith.cmpi eq, %odd, %one : index
             %down = arith.subi %within, %one : index
             %up = arith.addi %within, %one : index
             %partner = arith.select %second, %down, %up : index"
        } else {
            "%within = arith.minui %column, %turned_last : index
             %second = arith.cmpi uge, %within, %half : index
             %down = arith.subi %within, %half : index
             %up = arith.addi %within, %half : index
             %angle = arith.select %second, %down, %within : index
             %partner = arith.select %second, %down, %up : index"
        };
        let result = if rope.width == x.dims()[2] {
            "%rotated = arith.addf %straight, %across : f32"
        } else {
            "%turned = arith.addf %straight, %across : f32
             %inside = arith.cmpi ule, %column, %turned_last : index
             %rotated = arith.select %inside, %turned, %this : f32"
        };
        format!(
            "%half = arith.constant {half} : index
             %turned_last = arith.constant {last} : index
             {pair}
             %cos = tensor.extract {}[%row, %angle] : {}
             %sin = tensor.extract {}[%row, %angle] : {}
             %this = tensor.extract {name}[%row, %head, %column] : {ty}
             %other = tensor.extract {name}[%row, %head, %partner] : {ty}
             %negative = arith.negf %sin : f32
             %sign = arith.select %second, %sin, %negative : f32
             %straight = arith.mulf %this, %cos : f32
             %across = arith.mulf %other, %sign : f32
             {result}",
            cos.name,
            cos.ty,
            sin.name,
            sin.ty,
            half = rope.width / 2,
            last = rope.width - 1,
        )
    }
}

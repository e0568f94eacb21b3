//! Rotary position embeddings (Su et al., RoFormer), in Hugging Face's half-split form.

use super::{Emitter, Source};
use crate::emit::builder::{ElementType, Value};

/// Cosines and sines of the rows of this call, `[rows, head_dim / 2]` each.
pub(super) struct Angles {
    pub(super) cos: Value,
    pub(super) sin: Value,
}

impl Emitter<'_> {
    /// Reads the angles of this call's positions. They come from tables that the host computes:
    /// compiled cosines lose accuracy far from zero, where long contexts are.
    pub(super) fn angles(&mut self) -> Angles {
        let half = self.config.head_dim / 2;
        let mut read = |source| {
            let table = self.argument(source, &[self.capacity, half], ElementType::F32);
            let zero = self.b.splat(0, &[], ElementType::I32);
            let start = self.start.clone();
            self.b.dynamic_slice(&table, &[start, zero], &[self.rows, half])
        };
        Angles { cos: read(Source::RopeCos), sin: read(Source::RopeSin) }
    }

    /// Rotates `x`, `[rows, heads, head_dim]`: (a, b) becomes (a cos - b sin, b cos + a sin).
    pub(super) fn rope(&mut self, x: &Value, angles: &Angles) -> Value {
        let &[rows, heads, width] = x.dims() else { unreachable!("heads have 3 dims") };
        let dims = [rows, heads, 2, width / 2];
        let x = self.b.reshape(x, &dims);
        let rotated = self.rotate(&x, angles);
        self.b.reshape(&rotated, &[rows, heads, width])
    }

    /// One elementwise pass with the halves swapped.
    fn rotate(&mut self, x: &Value, angles: &Angles) -> Value {
        let dims = x.dims().to_vec();
        let swapped = self.b.op(
            &dims,
            ElementType::F32,
            format_args!("stablehlo.reverse {}, dims = [2] : {}", x.name, x.ty),
        );
        let sign = self.b.op(
            &[2],
            ElementType::F32,
            "stablehlo.constant dense<[-1.0, 1.0]> : tensor<2xf32>",
        );
        let sign = self.b.broadcast(&sign, &dims, &[2]);
        let cos = self.b.broadcast(&angles.cos, &dims, &[0, 3]);
        let sin = self.b.broadcast(&angles.sin, &dims, &[0, 3]);
        let straight = self.b.mul(x, &cos);
        let swapped = self.b.mul(&swapped, &sign);
        let swapped = self.b.mul(&swapped, &sin);
        self.b.add(&straight, &swapped)
    }
}

//! Rotary position embeddings (Su et al., RoFormer).

use super::{Emitter, Source};
use crate::emit::builder::{ElementType, Value};

/// Cosines and sines of the rows of this call, `[rows, width / 2]` each.
pub(super) struct Angles {
    cos: Value,
    sin: Value,
    interleaved: bool,
}

impl Emitter<'_> {
    /// Reads the angles of this call's positions, for each way to rotate. They come from tables that the
    /// host computes: compiled cosines lose accuracy far from zero, where long contexts are.
    pub(super) fn angles(&mut self) -> Vec<Angles> {
        let ropes = self.config.architecture.ropes.iter().enumerate();
        ropes
            .map(|(at, rope)| {
                let half = rope.width / 2;
                let mut read = |source| {
                    let table = self.argument(source, &[self.capacity, half], ElementType::F32);
                    let zero = self.b.splat(0, &[], ElementType::I32);
                    let start = self.start.clone();
                    self.b.dynamic_slice(&table, &[start, zero], &[self.rows, half])
                };
                let (cos, sin) = (read(Source::RopeCos(at)), read(Source::RopeSin(at)));
                Angles { cos, sin, interleaved: rope.interleaved }
            })
            .collect()
    }

    /// Rotates `x`, `[rows, heads, head_dim]`, or the first dimensions of its heads: of each pair (a, b)
    /// becomes (a cos - b sin, b cos + a sin).
    pub(super) fn rope(&mut self, x: &Value, angles: &Angles) -> Value {
        let &[rows, heads, width] = x.dims() else { unreachable!("heads have 3 dims") };
        let half = angles.cos.dims()[1];
        let turned = if 2 * half < width { self.b.slice(x, 2, 0, 2 * half) } else { x.clone() };
        let dims = if angles.interleaved { [rows, heads, half, 2] } else { [rows, heads, 2, half] };
        let pairs = self.b.reshape(&turned, &dims);
        let pairs = self.rotate(&pairs, angles);
        let turned = self.b.reshape(&pairs, &[rows, heads, 2 * half]);
        if 2 * half == width {
            return turned;
        }
        let rest = self.b.slice(x, 2, 2 * half, width);
        self.b.concat(&[turned, rest], 2)
    }

    /// One elementwise pass with the halves of pairs swapped.
    fn rotate(&mut self, x: &Value, angles: &Angles) -> Value {
        let dims = x.dims().to_vec();
        let (pair, angle) = if angles.interleaved { (3, 2) } else { (2, 3) };
        let swapped = self.b.op(
            &dims,
            ElementType::F32,
            format_args!("stablehlo.reverse {}, dims = [{pair}] : {}", x.name, x.ty),
        );
        let sign = self.b.op(
            &[2],
            ElementType::F32,
            "stablehlo.constant dense<[-1.0, 1.0]> : tensor<2xf32>",
        );
        let sign = self.b.broadcast(&sign, &dims, &[pair]);
        let cos = self.b.broadcast(&angles.cos, &dims, &[0, angle]);
        let sin = self.b.broadcast(&angles.sin, &dims, &[0, angle]);
        let straight = self.b.mul(x, &cos);
        let swapped = self.b.mul(&swapped, &sign);
        let swapped = self.b.mul(&swapped, &sin);
        self.b.add(&straight, &swapped)
    }
}

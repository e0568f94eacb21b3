//! Attention by way of fewer numbers.

use checkpoint::architecture::{Attention, Latent};

use super::Emitter;
use crate::emit::builder::Value;

impl Emitter<'_> {
    /// Queries, keys and values side by side, `[rows, 3 * heads * head_dim]`, of what a layer's first projections gave:
    /// of each head the columns that turn first, and zeros behind values that are narrower.
    pub(super) fn expanded(&mut self, attention: &Attention, latent: &Latent, x: &Value) -> Value {
        let Latent { queries, norm, expand, rotated, value_dim } = latent;
        let &Attention { heads, head_dim: width, .. } = attention;
        let (rows, plain, first) = (self.rows, width - rotated, attention.qkv[0].outputs());
        let all = [rows, heads * width];
        let mut of_queries = self.b.slice(x, 1, 0, first);
        if let Some((norm, linear)) = queries {
            let normed = self.norm(&of_queries, norm);
            of_queries = self.linear(&normed, linear);
        }
        let of_queries = self.b.reshape(&of_queries, &[rows, heads, width]);
        let parts = [(plain, width), (0, plain)];
        let parts = parts.map(|(from, to)| self.b.slice(&of_queries, 2, from, to));
        let of_queries = self.b.concat(&parts, 2);

        let behind = first + norm.width();
        let keys_values = self.b.slice(x, 1, first, behind);
        let keys_values = self.norm(&keys_values, norm);
        let keys_values = self.linear(&keys_values, expand);
        let keys_values = self.b.reshape(&keys_values, &[rows, heads, plain + value_dim]);
        let turning = self.b.slice(x, 1, behind, behind + rotated);
        let turning = self.b.broadcast(&turning, &[rows, heads, *rotated], &[0, 2]);
        let keys = self.b.slice(&keys_values, 2, 0, plain);
        let keys = self.b.concat(&[turning, keys], 2);
        let mut values = self.b.slice(&keys_values, 2, plain, plain + value_dim);
        if *value_dim < width {
            let zeros = self.b.splat_f32(0.0, &[rows, heads, width - value_dim]);
            values = self.b.concat(&[values, zeros], 2);
        }
        let parts = [of_queries, keys, values].map(|part| self.b.reshape(&part, &all));
        self.b.concat(&parts, 1)
    }

    /// What heads mixed, `[rows, heads * head_dim]`, without what is behind narrower values.
    pub(super) fn narrowed(&mut self, attention: &Attention, latent: &Latent, x: Value) -> Value {
        let &Attention { heads, head_dim: width, .. } = attention;
        if latent.value_dim == width {
            return x;
        }
        let x = self.b.reshape(&x, &[self.rows, heads, width]);
        let x = self.b.slice(&x, 2, 0, latent.value_dim);
        self.b.reshape(&x, &[self.rows, heads * latent.value_dim])
    }
}

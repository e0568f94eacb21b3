//! The KV cache: where keys and values of a layer lie, and how a call adds its own.

use super::rope::Angles;
use super::{Emitter, Source};
use crate::emit::builder::{ElementType, Value};

/// Keys and values of one layer with this call's added, `[kv_heads, capacity, head_dim]` each; where it
/// convolves the two halves of its rows, `[1, capacity, hidden_size / 2]` each.
pub(super) struct Cache {
    pub keys: Value,
    pub values: Value,
}

impl Emitter<'_> {
    /// Rotates queries and keys by these angles where the layer does, and writes keys and values at this call's
    /// positions. `qkv` has queries, keys and values side by side, `[rows, (heads + 2 * kv_heads) * head_dim]`;
    /// `normed` has the queries and keys that take their place, `[rows, heads + kv_heads, head_dim]`. Returns
    /// the queries, with the keys behind them.
    pub(super) fn rotate_and_append(
        &mut self,
        layer: usize,
        qkv: &Value,
        normed: Option<&Value>,
        angles: Option<[&Angles; 2]>,
    ) -> (Value, Cache) {
        let (heads, kv_heads) = (self.config.num_attention_heads, self.config.num_key_value_heads);
        let (rows, width) = (self.rows, self.config.head_dim);
        let all = heads + kv_heads;
        let values = self.b.slice(qkv, 1, all * width, (all + kv_heads) * width);
        let values = self.b.reshape(&values, &[rows, kv_heads, width]);
        let both = normed.cloned().unwrap_or_else(|| {
            let both = self.b.slice(qkv, 1, 0, all * width);
            self.b.reshape(&both, &[rows, all, width])
        });
        let both = self.rotated(&both, heads, angles);
        let keys = self.b.slice(&both, 1, heads, all);
        let cache = self.append(layer, &keys, &values);
        (both, cache)
    }

    /// `both`, `heads` heads of queries and those of keys behind them, rotated by these angles if there are some.
    pub(super) fn rotated(
        &mut self,
        both: &Value,
        heads: usize,
        angles: Option<[&Angles; 2]>,
    ) -> Value {
        match angles {
            None => both.clone(),
            Some([queries, keys]) if std::ptr::eq(queries, keys) => self.rope(both, keys),
            Some(of) => {
                let all = both.dims()[1];
                let parts = [(0, heads, of[0]), (heads, all, of[1])].map(|(from, to, angles)| {
                    let part = self.b.slice(both, 1, from, to);
                    self.rope(&part, angles)
                });
                self.b.concat(&parts, 1)
            }
        }
    }

    /// The cache of a layer with `keys` and `values`, `[rows, heads, width]`, at this call's positions.
    pub(super) fn append(&mut self, layer: usize, keys: &Value, values: &Value) -> Cache {
        let &[_, heads, width] = keys.dims() else { unreachable!("heads have 3 dims") };
        let dims = [heads, self.capacity, width];
        let zero = self.b.splat(0, &[], ElementType::I32);
        let mut write = |source, new: &Value| {
            let old = self.argument(source, &dims, ElementType::F32);
            let new = self.b.transpose(new, &[1, 0, 2]);
            let at = [zero.clone(), self.start.clone(), zero.clone()];
            self.b.dynamic_update_slice(&old, &new, &at)
        };
        Cache {
            keys: write(Source::Keys(layer), keys),
            values: write(Source::Values(layer), values),
        }
    }
}

//! The KV cache: where keys and values of a layer lie, and how a call adds its own.

use super::rope::Angles;
use super::{Emitter, Source};
use crate::emit::builder::{ElementType, Value};

/// Keys and values of one layer with this call's added, `[kv_heads, capacity, head_dim]` each; where it
/// convolves the two halves of its rows, `[1, capacity, hidden_size / 2]` each.
#[derive(Clone)]
pub(super) struct Cache {
    pub keys: Value,
    pub values: Value,
}

impl Emitter<'_> {
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

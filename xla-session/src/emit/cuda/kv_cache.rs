//! The cache of keys and values: as on the CPU in blocks, but in both the columns of a head lie
//! side by side, for threads to load 16 bytes of.

use crate::emit::builder::{DYNAMIC, Value};
use crate::emit::graph::Source;
use crate::emit::kv_cache::{Cache, KV_BLOCK};
use crate::emit::{ElementType, Emitter};

impl Emitter<'_> {
    /// [`append`](Self::append) to blocks `[kv_heads, KV_BLOCK, head_dim]`.
    pub(in crate::emit) fn append_rows(
        &mut self,
        layer: usize,
        keys: &Value,
        values: &Value,
    ) -> Cache {
        let &[rows, heads, width] = keys.dims() else { unreachable!("heads have 3 dims") };
        let tokens = rows.min(KV_BLOCK);
        let blocks = rows / tokens;
        let block = self.b.index_div(&self.start.name, KV_BLOCK);
        let within =
            if blocks > 1 { 0.into() } else { self.b.index_rem(&self.start.name, KV_BLOCK) };
        let at = [block, 0.into(), within, 0.into()];
        let mut write = |source, new: &Value| {
            let dims = [DYNAMIC, heads, KV_BLOCK, width];
            let old = self.argument(source, &dims, ElementType::F32);
            let new = self.b.reshape(new, &[blocks, tokens, heads, width]);
            let new = self.b.transpose(&new, &[0, 2, 1, 3]);
            self.b.insert(&new, &old, &at)
        };
        Cache {
            keys: write(Source::Keys(layer), keys),
            values: write(Source::Values(layer), values),
        }
    }
}

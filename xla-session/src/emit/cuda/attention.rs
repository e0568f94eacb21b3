//! Attention as one dispatch over the blocks in use.

use super::tiles::CudaTiles;
use crate::emit::builder::{Attention, DYNAMIC, Generic, Value, literal};
use crate::emit::kv_cache::{Cache, KV_BLOCK};
use crate::emit::{ElementType, Emitter};

impl Emitter<'_> {
    /// Attends from `q`, `[kv_heads, rows, head_dim]`, each `group` of rows of one position, to
    /// what of the cache is visible.
    pub(in crate::emit) fn attend_in_one(
        &mut self,
        q: &Value,
        cache: &Cache,
        window: Option<usize>,
        group: usize,
        tiles: &CudaTiles,
    ) -> Value {
        let &[heads, rows, width] = q.dims() else { unreachable!("queries have 3 dims") };
        let seen = self.b.empty_of(ElementType::I1, &[rows, DYNAMIC, KV_BLOCK], Some(&cache.keys));
        let body = format!(
            "%r = linalg.index 0 : index
             %n = linalg.index 1 : index
             %s = linalg.index 2 : index
             {}
             linalg.yield %seen : i1",
            self.seen_body(window, group)
        );
        let nest =
            Generic { loops: "r,n,s", inputs: &[], result: "r,n,s", body: &body, config: None };
        let seen = self.b.generic(&nest, &seen);
        self.b.attention(
            &Attention {
                loops: "h,r,e,n,s,d",
                inputs: [
                    (q, "h,r,d"),
                    (&cache.keys, "n,h,s,d"),
                    (&cache.values, "n,h,s,e"),
                    (&seen, "r,n,s"),
                ],
                result: "h,r,e",
                scale: &literal(self.scale()),
                attributes: &tiles.attention(rows, width, KV_BLOCK),
            },
            &[heads, rows, width],
        )
    }
}

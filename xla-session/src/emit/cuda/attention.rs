//! Attention as one dispatch over the blocks in use.

use super::tiles::{AttentionShape, CudaTiles};
use crate::emit::builder::{Attention, DYNAMIC, Generic, Value, literal};
use crate::emit::kv_cache::{Cache, KV_BLOCK};
use crate::emit::{ElementType, Emitter};

impl Emitter<'_> {
    /// [`attention`](Self::attention) with queries and results as they come.
    pub(in crate::emit) fn attend_in_one(
        &mut self,
        queries: &Value,
        cache: &Cache,
        window: Option<usize>,
        tiles: &CudaTiles,
    ) -> Value {
        let &[rows, heads, width] = queries.dims() else { unreachable!("heads have 3 dims") };
        let kv_heads = self.config.num_key_value_heads;
        let group = heads / kv_heads;
        let seen = [rows, DYNAMIC, KV_BLOCK];
        let seen = self.b.empty_of(ElementType::I1, &seen, Some(&cache.keys));
        let body = format!(
            "%r = linalg.index 0 : index
             %n = linalg.index 1 : index
             %s = linalg.index 2 : index
             {}
             linalg.yield %seen : i1",
            self.seen_body(window, 1)
        );
        let nest =
            Generic { loops: "r,n,s", inputs: &[], result: "r,n,s", body: &body, config: None };
        let mut seen = self.b.generic(&nest, &seen);
        // The queries that share a head of keys are a loop of their own.
        let mut dims = vec![rows, kv_heads, group, width];
        let mut maps = ["h,r,g,e,d,n,s", "r,h,g,d", "r,n,s", "r,h,g,e"];
        if rows == 1 {
            dims.remove(0);
            maps = ["h,g,e,d,n,s", "h,g,d", "n,s", "h,g,e"];
            seen = self.b.drop_first(&seen);
        }
        let [loops, query, mask, result] = maps;
        let q = self.b.reshape(queries, &dims);
        let mixed = self.b.attention(
            &Attention {
                loops,
                inputs: [
                    (&q, query),
                    (&cache.keys, "n,h,s,d"),
                    (&cache.values, "n,h,s,e"),
                    (&seen, mask),
                ],
                result,
                scale: &literal(self.scale()),
                attributes: &tiles.attention(&AttentionShape {
                    rows,
                    kv_heads,
                    group,
                    width,
                    block: KV_BLOCK,
                }),
            },
            &dims,
        );
        self.b.reshape(&mixed, &[rows, heads * width])
    }
}

//! Attention as one dispatch over the blocks in use.

use kernels::KV_BLOCK;

use super::tiles::{AttentionShape, CudaTiles};
use crate::emit::attention::seen_body;
use crate::emit::builder::{Attention, DYNAMIC, Generic, TensorType, Value, literal};
use crate::emit::kv_cache::Cache;
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
        if self.capacity.is_some() {
            return self.attend_to_used(queries, cache, window, tiles);
        }
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
            seen_body(&self.start.name, window, 1)
        );
        let nest =
            Generic { loops: "r,n,s", inputs: &[], result: "r,n,s", body: &body, config: None };
        let seen = self.b.generic(&nest, &seen);
        // The queries that share a head of keys are a loop of their own.
        let dims = [rows, kv_heads, group, width];
        let q = self.b.reshape(queries, &dims);
        let mixed = self.b.attention(
            &Attention {
                loops: "h,r,g,e,d,n,s",
                inputs: [
                    (&q, "r,h,g,d"),
                    (&cache.keys, "n,h,s,d"),
                    (&cache.values, "n,h,s,e"),
                    (&seen, "r,n,s"),
                ],
                result: "r,h,g,e",
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

    /// The same of one row whose position lies in memory: the dispatch reads how many blocks of the
    /// cache are in use.
    fn attend_to_used(
        &mut self,
        queries: &Value,
        cache: &Cache,
        window: Option<usize>,
        tiles: &CudaTiles,
    ) -> Value {
        let &[rows, heads, width] = queries.dims() else { unreachable!("heads have 3 dims") };
        let kv_heads = self.config.num_key_value_heads;
        let group = heads / kv_heads;
        // Loops of one step are left out: nothing folds them inside a dispatch.
        let some = |loops: &[(&'static str, usize)]| -> (String, Vec<usize>) {
            let kept = loops.iter().filter(|(_, extent)| *extent > 1);
            let (names, extents): (Vec<_>, Vec<_>) = kept.copied().unzip();
            (names.join(","), extents)
        };
        let (h, g) = (("h", kv_heads), ("g", group));
        let (result, dims) = some(&[h, g, ("e", width)]);
        let (query, _) = some(&[h, g, ("d", width)]);
        let (loops, _) = some(&[h, g, ("e", width), ("d", width)]);
        let (key, of_block) = some(&[h, ("s", KV_BLOCK), ("d", width)]);
        let (value, _) = some(&[h, ("s", KV_BLOCK), ("e", width)]);

        let q = self.b.reshape(queries, &dims);
        let ty = TensorType::new(&dims, ElementType::F32);
        let reads = [&self.start, &q, &cache.keys, &cache.values];
        let dispatch = self.b.begin_workgroups(&reads, &[], &[ty]);
        let [start, q, keys, values] = &dispatch.reads[..] else {
            unreachable!("as many as outside")
        };
        let start = self.b.element(start);
        let before = self.b.index_div(&start.name, KV_BLOCK);
        let blocks = self.b.index_next(&before);
        let keys = self.b.first(keys, &blocks, &of_block);
        let values = self.b.first(values, &blocks, &of_block);
        let seen = self.b.empty_of(ElementType::I1, &[DYNAMIC, KV_BLOCK], Some(&keys));
        let body = format!(
            "%r = arith.constant 0 : index
             %n = linalg.index 0 : index
             %s = linalg.index 1 : index
             {}
             linalg.yield %seen : i1",
            seen_body(&start.name, window, 1)
        );
        let nest = Generic { loops: "n,s", inputs: &[], result: "n,s", body: &body, config: None };
        let seen = self.b.generic(&nest, &seen);
        let shape = AttentionShape { rows, kv_heads, group, width, block: KV_BLOCK };
        let mixed = self.b.attention(
            &Attention {
                loops: &format!("{loops},n,s"),
                inputs: [
                    (q, &query),
                    (&keys, &format!("n,{key}")),
                    (&values, &format!("n,{value}")),
                    (&seen, "n,s"),
                ],
                result: &result,
                scale: &literal(self.scale()),
                attributes: &tiles.attention(&shape),
            },
            &dims,
        );
        let mixed = self.b.end_workgroups(dispatch, &[mixed]).remove(0);
        let mixed = self.kept(mixed);
        self.b.reshape(&mixed, &[rows, heads * width])
    }
}

//! The cache of keys and values: as on the CPU in blocks, but in both the columns of a head lie
//! side by side, for threads to load 16 bytes of.

use crate::emit::builder::{DYNAMIC, Generic, Value};
use crate::emit::graph::Source;
use crate::emit::kv_cache::{Cache, KV_BLOCK};
use crate::emit::rope::Angles;
use crate::emit::{ElementType, Emitter};

impl Emitter<'_> {
    /// Adds to blocks `[kv_heads, KV_BLOCK, head_dim]`: the keys behind the queries of `both`,
    /// `[rows, heads + kv_heads or more, head_dim]`, rotated, and the values behind both in `qkv`,
    /// `[rows, heads + 2 * kv_heads, head_dim]`. One dispatch writes to both caches.
    pub(in crate::emit) fn append_rotated(
        &mut self,
        layer: usize,
        both: &Value,
        qkv: &Value,
        angles: &Angles,
    ) -> Cache {
        let &[rows, all, width] = qkv.dims() else { unreachable!("heads have 3 dims") };
        let heads = self.config.num_key_value_heads;
        let tokens = rows.min(KV_BLOCK);
        let blocks = rows / tokens;
        let block = self.b.index_div(&self.start.name, KV_BLOCK);
        let within =
            if blocks > 1 { 0.into() } else { self.b.index_rem(&self.start.name, KV_BLOCK) };
        let at = [block, 0.into(), within, 0.into()];
        let cache = [DYNAMIC, heads, KV_BLOCK, width];
        let old = [Source::Keys(layer), Source::Values(layer)]
            .map(|source| self.argument(source, &cache, ElementType::F32));
        // Loops of one step are left out, as the insertions would lose their dimensions: between loops
        // and insertions of another rank the compiler (3.13.0, for CPUs) distributes wrongly.
        let dims = [blocks, heads, tokens, width];
        let loops: Vec<_> = (0..dims.len()).filter(|&i| dims[i] > 1).collect();
        let extents: Vec<_> = loops.iter().map(|&i| dims[i]).collect();
        let names: Vec<_> = loops.iter().map(|&i| ["b", "h", "t", "d"][i]).collect();
        let names = names.join(",");
        let index = |i| match loops.iter().position(|&l| l == i) {
            Some(at) => format!("linalg.index {at} : index"),
            None => "arith.constant 0 : index".into(),
        };
        let body = format!(
            "%b = {}
             %h = {}
             %t = {}
             %column = {}
             %tokens = arith.constant {tokens} : index
             %before = arith.muli %b, %tokens : index
             %row = arith.addi %before, %t : index
             %queries = arith.constant {} : index
             %head = arith.addi %queries, %h : index
             {}
             %keys = arith.constant {heads} : index
             %behind = arith.addi %head, %keys : index
             %value = tensor.extract {}[%row, %behind, %column] : {}
             linalg.yield %rotated, %value : f32, f32",
            index(0),
            index(1),
            index(2),
            index(3),
            all - 2 * heads,
            self.rotation(both, angles),
            qkv.name,
            qkv.ty,
        );
        let [keys, values] = self.b.dispatch(old.each_ref(), |b| {
            let into = b.empty(&extents, None);
            let nest =
                Generic { loops: &names, inputs: &[], result: &names, body: &body, config: None };
            let new = b.generics(&nest, &[&into, &into]);
            [0, 1].map(|i| b.insert_as(&new[i], &dims, &old[i], &at))
        });
        Cache { keys, values }
    }
}

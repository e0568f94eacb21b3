//! The cache of keys and values: as on the CPU in blocks, but in both the columns of a head lie
//! side by side, for threads to load 16 bytes of.

use kernels::KV_BLOCK;

use crate::emit::builder::{Builder, DYNAMIC, Generic, Index, Value};
use crate::emit::graph::Source;
use crate::emit::kv_cache::Cache;
use crate::emit::rope::Angles;
use crate::emit::{ElementType, Emitter};

/// What a call adds to a layer: blocks, heads, tokens of each, columns.
struct Added([usize; 4]);

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
        let &[rows, _, width] = qkv.dims() else { unreachable!("heads have 3 dims") };
        let heads = self.config.num_key_value_heads;
        let tokens = rows.min(KV_BLOCK);
        let added = Added([rows / tokens, heads, tokens, width]);
        let cache = [self.capacity.unwrap_or(DYNAMIC), heads, KV_BLOCK, width];
        let old = [Source::Keys(layer), Source::Values(layer)]
            .map(|source| self.argument(source, &cache, ElementType::F32));
        if self.capacity.is_none() {
            let body = self.append_body(&added, both, qkv, angles, &self.start);
            let at = added.offsets(&mut self.b, &self.start);
            let [keys, values] =
                self.b.dispatch(old.each_ref(), |b| added.insert(b, &body, old.each_ref(), &at));
            return Cache { keys, values };
        }
        let reads = [&self.start, &angles.cos, &angles.sin, both, qkv];
        let dispatch = self.b.begin_workgroups(&reads, &old.each_ref(), &[]);
        let ([start, cos, sin, both, qkv], [keys, values]) =
            (&dispatch.reads[..], &dispatch.updates[..])
        else {
            unreachable!("as many as outside")
        };
        let angles = Angles { cos: cos.clone(), sin: sin.clone() };
        let body = self.append_body(&added, both, qkv, &angles, start);
        let start = self.b.element(start);
        let at = added.offsets(&mut self.b, &start);
        let new = added.insert(&mut self.b, &body, [keys, values], &at);
        let mut new = self.b.end_workgroups(dispatch, &new).into_iter();
        let mut next = || new.next().expect("keys and values are updated");
        Cache { keys: next(), values: next() }
    }

    /// Yields a rotated key and a value.
    fn append_body(
        &self,
        added: &Added,
        both: &Value,
        qkv: &Value,
        angles: &Angles,
        start: &Value,
    ) -> String {
        let Added([_, heads, tokens, _]) = added;
        let [block, head, token, column] = [0, 1, 2, 3].map(|i| added.index(i));
        format!(
            "%b = {block}
             %h = {head}
             %t = {token}
             %column = {column}
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
            qkv.dims()[1] - 2 * heads,
            self.rotation(both, angles, start),
            qkv.name,
            qkv.ty,
        )
    }
}

impl Added {
    /// The loops of more than one step. Those of one are left out, as the insertions would lose
    /// their dimensions: between loops and insertions of another rank the compiler (3.13.0, for
    /// CPUs) distributes wrongly.
    fn loops(&self) -> impl Iterator<Item = usize> {
        (0..self.0.len()).filter(|&i| self.0[i] > 1)
    }

    /// The step of loop `i`.
    fn index(&self, i: usize) -> String {
        match self.loops().position(|l| l == i) {
            Some(at) => format!("linalg.index {at} : index"),
            None => "arith.constant 0 : index".into(),
        }
    }

    /// Where it goes in a cache when the first token is at position `start`, an `i32`.
    fn offsets(&self, b: &mut Builder, start: &Value) -> [Index; 4] {
        let block = b.index_div(&start.name, KV_BLOCK);
        let within = if self.0[0] > 1 { 0.into() } else { b.index_rem(&start.name, KV_BLOCK) };
        [block, 0.into(), within, 0.into()]
    }

    /// The keys and values of `old` with those that `body` yields.
    fn insert(&self, b: &mut Builder, body: &str, old: [&Value; 2], at: &[Index]) -> [Value; 2] {
        let extents: Vec<_> = self.loops().map(|i| self.0[i]).collect();
        let names: Vec<_> = self.loops().map(|i| ["b", "h", "t", "d"][i]).collect();
        let names = names.join(",");
        let into = b.empty(&extents, None);
        let nest = Generic { loops: &names, inputs: &[], result: &names, body, config: None };
        let new = b.generics(&nest, &[&into, &into]);
        [0, 1].map(|i| b.insert_as(&new[i], &self.0, old[i], at))
    }
}

//! Causal grouped-query attention over the KV cache.

use checkpoint::architecture;

use super::Emitter;
use super::kv_cache::Cache;
use crate::emit::builder::{Combine, ElementType, Value};

/// What a masked score becomes: finite, so that a wholly masked block has a finite maximum and
/// weighs nothing when blocks are combined.
const MASKED: f32 = -1e30;

impl Emitter<'_> {
    /// Attends from the queries of `rotated`, `[rows, heads, head_dim]` and more heads behind them,
    /// to every token of the cache that is not later and, with a window, among the latest; returns
    /// `[rows, heads * head_dim]`.
    pub(super) fn attention(
        &mut self,
        rotated: &Value,
        cache: &Cache,
        attention: &architecture::Attention,
    ) -> Value {
        let &architecture::Attention { heads, kv_heads, .. } = attention;
        let queries = self.b.slice(rotated, 1, 0, heads);
        let &[rows, _, width] = rotated.dims() else { unreachable!("heads have 3 dims") };
        let group = heads / kv_heads;
        // The queries that share a key head, one under the other: [kv_heads, rows * group, width].
        let queries = self.b.reshape(&queries, &[rows, kv_heads, group, width]);
        let queries = self.b.transpose(&queries, &[1, 0, 2, 3]);
        let queries = self.b.reshape(&queries, &[kv_heads, rows * group, width]);
        let mixed = self.attend(&queries, cache, attention, group);
        let mixed = self.b.reshape(&mixed, &[kv_heads, rows, group, width]);
        let mixed = self.b.transpose(&mixed, &[1, 0, 2, 3]);
        self.b.reshape(&mixed, &[rows, heads * width])
    }

    /// The textbook form, over the whole capacity.
    fn attend(
        &mut self,
        q: &Value,
        cache: &Cache,
        attention: &architecture::Attention,
        group: usize,
    ) -> Value {
        let &architecture::Attention { window, scale, cap, .. } = attention;
        let scores = self.b.dot(q, &cache.keys, [&[0], &[0]], [&[2], &[2]]);
        let dims = scores.dims().to_vec();
        let scores = self.b.scaled(&scores, scale);
        let scores = self.b.capped(&scores, cap);
        let key = self.b.iota(&dims, 2);
        let row = self.b.iota(&dims, 1);
        let by = self.b.splat(group, &dims, ElementType::I32);
        let row = self.b.div(&row, &by);
        let start = self.b.broadcast(&self.start.clone(), &dims, &[]);
        let query = self.b.add(&start, &row);
        let mut seen = self.b.compare("LE", &key, &query);
        if let Some(window) = window {
            let back = self.b.splat(window, &dims, ElementType::I32);
            let oldest = self.b.sub(&query, &back);
            let recent = self.b.compare("GT", &key, &oldest);
            seen = self.b.and(&seen, &recent);
        }
        let masked = self.b.splat_f32(MASKED, &dims);
        let scores = self.b.select(&seen, &scores, &masked);
        let mut max = self.b.reduce(&scores, &[2], Combine::Max);
        // Of each row's queries the same ones.
        let sinks = attention.sinks.as_ref().map(|sinks| {
            let (kv_heads, rows) = (dims[0], dims[1] / group);
            let sinks = self.vector(sinks);
            let sinks = self.b.reshape(&sinks, &[kv_heads, group]);
            let sinks = self.b.broadcast(&sinks, &[kv_heads, rows, group], &[0, 2]);
            self.b.reshape(&sinks, &dims[..2])
        });
        if let Some(sinks) = &sinks {
            max = self.b.max(&max, sinks);
        }
        let of_all = self.b.broadcast(&max, &dims, &[0, 1]);
        let scores = self.b.sub(&scores, &of_all);
        let weights = self.b.unary("exponential", &scores);
        let mut sum = self.b.reduce(&weights, &[2], Combine::Add);
        if let Some(sinks) = &sinks {
            let less = self.b.sub(sinks, &max);
            let weight = self.b.unary("exponential", &less);
            sum = self.b.add(&sum, &weight);
        }
        let mixed = self.b.dot(&weights, &cache.values, [&[0], &[0]], [&[2], &[1]]);
        let sum = self.b.broadcast(&sum, mixed.dims(), &[0, 1]);
        self.b.div(&mixed, &sum)
    }
}

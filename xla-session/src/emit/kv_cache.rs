//! The KV cache: where keys and values of a layer lie, and how a call adds its own.
//!
//! On IREE targets the cache is cut into blocks of [`KV_BLOCK`] tokens, outermost, so that the
//! blocks in use are a prefix of the buffer: a call is given a view of that prefix, and its cost
//! follows the tokens in use while one compiled graph serves every capacity. A GPU's decode step has
//! functions for some capacities instead, and is given the whole buffer. Keys lie transposed
//! within a block, which puts consecutive tokens into one vector register. On CPUs they may be
//! rounded to f16 ([`KvFormat`]): this call's tokens attend to what later ones will read.

use checkpoint::config::ModelConfig;
use kernels::KV_BLOCK;

use super::builder::Value;
use super::graph::Source;
use super::rope::Angles;
use super::{ElementType, Emitter, Target};

/// Blocks of the caches of the graphs that are for one capacity, fewest first: for twice the tokens of
/// the one before, up to the longest context of the model, and each with a chunk of padding.
pub(super) fn capacities(config: &ModelConfig) -> Vec<usize> {
    const FEWEST: usize = 16;
    const PADDING: usize = 4;
    let most = config.max_position_embeddings.div_ceil(KV_BLOCK) + PADDING;
    let doubled = std::iter::successors(Some(FEWEST), |blocks| Some(2 * blocks));
    let padded = doubled.map(|blocks| blocks + PADDING);
    padded.take_while(|&blocks| blocks < most).chain([most]).collect()
}

/// Keys and values of one layer with this call's added.
pub(super) struct Cache {
    /// `[blocks, kv_heads, head_dim, KV_BLOCK]`; portable `[kv_heads, capacity, head_dim]`; for
    /// CUDA as the values.
    pub keys: Value,
    /// `[blocks, kv_heads, KV_BLOCK, head_dim]`; portable `[kv_heads, capacity, head_dim]`.
    pub values: Value,
}

impl Emitter<'_> {
    /// Rotates queries and keys, and writes keys and values at this call's positions. `qkv` has
    /// queries, keys and values side by side, `[rows, (heads + 2 * kv_heads) * head_dim]`; `normed`
    /// has the queries and keys that take their place, `[rows, heads + kv_heads, head_dim]`. Returns
    /// the queries, with or without the keys behind them.
    ///
    /// A call of several rows starts at a multiple of `min(rows, KV_BLOCK)`.
    pub(super) fn rotate_and_append(
        &mut self,
        layer: usize,
        qkv: &Value,
        normed: Option<&Value>,
        angles: &Angles,
    ) -> (Value, Cache) {
        let (heads, kv_heads) = (self.config.num_attention_heads, self.config.num_key_value_heads);
        let (rows, width) = (self.rows, self.config.head_dim);
        let all = heads + kv_heads;
        if let Target::Cuda(_) = self.target {
            let qkv = self.b.reshape(qkv, &[rows, all + kv_heads, width]);
            let both = normed.unwrap_or(&qkv);
            let queries = self.rotated_heads(both, heads, angles);
            let queries = self.kept(queries);
            return (queries, self.append_rotated(layer, both, &qkv, angles));
        }
        let values = self.b.slice(qkv, 1, all * width, (all + kv_heads) * width);
        let values = self.b.reshape(&values, &[rows, kv_heads, width]);
        let both = normed.cloned().unwrap_or_else(|| {
            let both = self.b.slice(qkv, 1, 0, all * width);
            self.b.reshape(&both, &[rows, all, width])
        });
        let both = self.rope(&both, angles);
        let keys = self.b.slice(&both, 1, heads, all);
        let cache = self.append(layer, &keys, &values);
        (both, cache)
    }

    fn append(&mut self, layer: usize, keys: &Value, values: &Value) -> Cache {
        let (heads, width) = (self.config.num_key_value_heads, self.config.head_dim);
        let Target::Portable { capacity } = self.target else {
            unreachable!("others have their own")
        };
        let dims = [heads, *capacity, width];
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

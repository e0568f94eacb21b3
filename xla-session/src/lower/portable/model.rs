//! The decoder.

use checkpoint::architecture::{Activation, Attention, Mlp, Norm};

use super::kv_cache::Cache;
use super::rope::Angles;
use super::{Emitter, Source};
use crate::emit::builder::{ElementType, Value};

impl Emitter<'_> {
    /// Emits the whole model; returns the results in [`Graph::results`](super::Graph::results)
    /// order.
    pub(super) fn model(&mut self) -> Vec<Value> {
        let config = self.config;
        let angles = self.angles();
        let mut caches = Vec::new();
        let mut x = self.embed();
        for (index, layer) in config.architecture.layers.iter().enumerate() {
            let h = self.norm(&x, &layer.input_norm);
            let (h, cache) = self.self_attention(index, &layer.attention, &h, &angles);
            caches.extend([cache.keys, cache.values]);
            x = self.b.add(&x, &h);
            let h = self.norm(&x, &layer.mlp_norm);
            let h = self.mlp(&layer.mlp, &h);
            x = self.b.add(&x, &h);
        }
        let logits = self.last_logits(&x);
        let token = self.argmax(&logits);
        let mut results = vec![token, logits];
        results.extend(caches);
        results
    }

    fn self_attention(
        &mut self,
        layer: usize,
        attention: &Attention,
        x: &Value,
        angles: &Angles,
    ) -> (Value, Cache) {
        let Attention { query, key, value, qk_norm, output, window, .. } = attention;
        let &Attention { heads, kv_heads, head_dim: width, .. } = attention;
        let rows = self.rows;
        let qkv = self.linears(x, &[query, key, value]);
        let normed = qk_norm.as_ref().map(|norm| {
            let both = self.b.slice(&qkv, 1, 0, (heads + kv_heads) * width);
            let both = self.b.reshape(&both, &[rows, heads + kv_heads, width]);
            let parts = [(&norm.query, 0, heads), (&norm.key, heads, heads + kv_heads)].map(
                |(norm, low, high)| {
                    let part = self.b.slice(&both, 1, low, high);
                    self.norm(&part, norm)
                },
            );
            self.b.concat(&parts, 1)
        });
        let (queries, cache) = self.rotate_and_append(layer, &qkv, normed.as_ref(), angles);
        let mixed = self.attention(&queries, &cache, *window);
        (self.linear(&mixed, output), cache)
    }

    fn mlp(&mut self, mlp: &Mlp, x: &Value) -> Value {
        let Mlp { gate, up, down, activation: Activation::Silu } = mlp;
        let gate = self.linear(x, gate);
        let up = self.linear(x, up);
        let silu = self.b.silu(&gate);
        let h = self.b.mul(&silu, &up);
        self.linear(&h, down)
    }

    fn norm(&mut self, x: &Value, norm: &Norm) -> Value {
        let weight = self.vector(&norm.weight);
        self.b.rms_norm(x, &weight, self.config.rms_norm_eps)
    }

    /// The embeddings of this call's tokens, `[rows, hidden_size]`.
    fn embed(&mut self) -> Value {
        let tokens = self.argument(Source::Tokens, &[self.rows], ElementType::I32);
        let table = self.matrix(&self.config.architecture.embedding);
        let rows = self.b.gather_rows(&table.weights, &tokens);
        self.b.convert(&rows, ElementType::F32)
    }

    /// The logits of the wanted row, `[vocab_size]`.
    fn last_logits(&mut self, x: &Value) -> Value {
        let config = self.config;
        let row = if self.rows == 1 {
            x.clone()
        } else {
            let zero = self.b.splat(0, &[], ElementType::I32);
            let last = self.last.clone();
            self.b.dynamic_slice(x, &[last, zero], &[1, config.hidden_size])
        };
        let row = self.norm(&row, &config.architecture.norm);
        let logits = self.product(&row, config.output());
        self.b.reshape(&logits, &[config.vocab_size])
    }
}

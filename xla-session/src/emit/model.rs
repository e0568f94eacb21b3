//! The decoder itself, the same for every target.

use checkpoint::architecture::{Activation, Attention, Mlp, Norm};

use super::builder::Value;
use super::graph::Source;
use super::linear::Linear;
use super::rope::Angles;
use super::{ElementType, Emitter, Target};

impl Emitter<'_> {
    /// Emits the whole model; returns the results in [`Graph::results`](super::Graph::results)
    /// order.
    pub(super) fn model(&mut self) -> Vec<Value> {
        let config = self.config;
        let angles = self.angles();
        let mut caches = Vec::new();
        let x = self.embed();
        let mut x = self.kept(x);
        for (index, layer) in config.architecture.layers.iter().enumerate() {
            let weight = self.norm_weight(&layer.input_norm);
            let (h, cache) = self.self_attention(index, &layer.attention, &x, &weight, &angles);
            caches.extend([cache.keys, cache.values]);
            x = self.b.add(&x, &h);
            x = self.kept(x);
            let weight = self.norm_weight(&layer.mlp_norm);
            let h = self.mlp(&layer.mlp, &x, &weight);
            x = self.b.add(&x, &h);
            x = self.kept(x);
        }
        let logits = self.last_logits(&x);
        let logits = self.answered(logits);
        let token = self.argmax(&logits, config.vocab_size);
        let logits = self.b.slice(&logits, 0, 0, config.vocab_size);
        let mut results = vec![token, logits];
        results.extend(caches);
        results
    }

    /// Of `x`, RMS-normed with the weight `norm`.
    fn self_attention(
        &mut self,
        layer: usize,
        attention: &Attention,
        x: &Value,
        norm: &Value,
        angles: &Angles,
    ) -> (Value, super::kv_cache::Cache) {
        let Attention { query, key, value, qk_norm, output, window, .. } = attention;
        let &Attention { heads, kv_heads, head_dim: width, .. } = attention;
        let rows = self.rows;
        let qkv = self.normed_linears(x, norm, &[query, key, value].map(Linear::from));
        let qkv = self.kept(qkv);
        let normed = qk_norm.as_ref().map(|norm| {
            let both = self.b.slice(&qkv, 1, 0, (heads + kv_heads) * width);
            let both = self.b.reshape(&both, &[rows, heads + kv_heads, width]);
            let parts = [(&norm.query, 0, heads), (&norm.key, heads, heads + kv_heads)].map(
                |(norm, low, high)| {
                    let weight = self.norm_weight(norm);
                    let part = self.b.slice(&both, 1, low, high);
                    self.rms_norm(&part, &weight)
                },
            );
            self.joined(&parts, 1)
        });
        let (queries, cache) = self.rotate_and_append(layer, &qkv, normed.as_ref(), angles);
        let mixed = self.attention(&queries, &cache, *window);
        (self.linear(&mixed, output.into()), cache)
    }

    /// The MLP of `x`, RMS-normed with the weight `norm`.
    fn mlp(&mut self, mlp: &Mlp, x: &Value, norm: &Value) -> Value {
        let Mlp { gate, up, down, activation: Activation::Silu } = mlp;
        let [gate, up] = self.normed_pair(x, norm, [gate.into(), up.into()]);
        let one = self.b.splat_f32(1.0, gate.dims());
        let exp = self.b.unary("negate", &gate);
        let exp = self.b.unary("exponential", &exp);
        let silu = self.b.add(&one, &exp);
        let silu = self.b.div(&gate, &silu);
        let h = self.b.mul(&silu, &up);
        let h = self.kept(h);
        self.linear(&h, down.into())
    }

    fn norm_weight(&mut self, norm: &Norm) -> Value {
        self.vector(&norm.weight.name, norm.width())
    }

    /// The embeddings of this call's tokens, `[rows, hidden_size]`.
    fn embed(&mut self) -> Value {
        let config = self.config;
        let mut tokens = self.argument(Source::Tokens, &[self.rows], ElementType::I32);
        if self.is_iree() && self.rows == 1 {
            // It may be what the step before left, unread: i32::MAX where there were no numbers.
            let most = self.b.splat(config.vocab_size - 1, &[1], ElementType::I32);
            tokens = self.b.min(&tokens, &most);
        }
        let parts = [(config.architecture.embedding.name.clone(), config.vocab_size)];
        let table = self.matrix(&parts, config.hidden_size);
        match self.target {
            Target::Cuda(_) => self.gather_row_major(&table, &tokens),
            Target::Portable { .. } => {
                let rows = self.b.gather_rows(&table.weights, &tokens);
                self.b.convert(&rows, ElementType::F32)
            }
        }
    }

    /// The projection that gives the logits.
    fn output_projection(&self) -> Linear {
        Linear::new(self.config.output(), None)
    }

    /// The logits of the wanted row, `[vocab_size]` or more when the table is padded.
    fn last_logits(&mut self, x: &Value) -> Value {
        let config = self.config;
        let last = self.last.clone();
        let dims = [1, config.hidden_size];
        let row = match self.target {
            _ if self.rows == 1 => x.clone(),
            Target::Cuda(_) => {
                let last = self.b.index_cast(&last.name);
                self.b.extract(x, &[last, 0.into()], &dims)
            }
            Target::Portable { .. } => {
                let zero = self.b.splat(0, &[], ElementType::I32);
                self.b.dynamic_slice(x, &[last, zero], &dims)
            }
        };
        let weight = self.norm_weight(&config.architecture.norm);
        let output = self.output_projection();
        let logits = self.normed_linears(&row, &weight, &[output]);
        let n = logits.dims()[1];
        self.b.reshape(&logits, &[n])
    }
}

//! The decoder over the rows of a step, and the head over rows that are wanted.

use checkpoint::architecture::{Activation, Attention, Layer, Mlp, Norm};

use super::function::Function;
use super::{HIDDEN_ROWS, Source};
use crate::emit::builder::{ElementType, TensorType, Value};

impl Function<'_> {
    /// From the tokens of a step to the residual stream behind the last layer.
    pub fn body(&mut self) {
        let mut x = self.embed();
        for (index, layer) in self.config.architecture.layers.iter().enumerate() {
            let Layer { input_norm, attention, mlp_norm, mlp } = layer;
            let h = self.self_attention(index, attention, &x, input_norm);
            x = self.b.add(&x, &h);
            x = self.kept(x);
            let h = self.mlp(mlp, &x, mlp_norm);
            x = self.b.add(&x, &h);
            if index + 1 < self.config.architecture.layers.len() {
                x = self.kept(x);
            }
        }
        self.answered(&x, Source::Hidden);
    }

    /// From wanted rows of that to their logits and most likely tokens.
    pub fn head(&mut self) {
        let config = self.config;
        let (rows, hidden) = (self.rows, config.hidden_size);
        let x = TensorType::new(&[HIDDEN_ROWS, hidden], ElementType::F32);
        let x = self.argument(Source::Hidden, x);
        let wanted = TensorType::new(&[rows], ElementType::I32);
        let wanted = self.argument(Source::Wanted, wanted);
        let x = self.b.gather_rows(&x, &wanted);
        let x = self.kept(x);
        let logits = self.normed_product(&x, &config.architecture.norm, [config.output()]);
        let logits = self.answered(&logits, Source::Logits);
        let picked = self.argmax(&logits);
        self.answered(&picked, Source::Picked);
    }

    /// Of `x`, RMS-normed with `norm`.
    fn self_attention(
        &mut self,
        layer: usize,
        attention: &Attention,
        x: &Value,
        norm: &Norm,
    ) -> Value {
        let Attention { query, key, value, qk_norm, output, window, .. } = attention;
        let &Attention { heads, kv_heads, head_dim: width, .. } = attention;
        let (rows, both) = (self.rows, heads + kv_heads);
        let group = [query, key, value];
        let qkv = self.normed_product(x, norm, group.map(|it| &it.weight));
        let qkv = self.biased(qkv, &group);
        let qkv = self.kept(qkv);
        let qkv = self.b.reshape(&qkv, &[rows, both + kv_heads, width]);
        let normed = qk_norm.as_ref().map(|norm| {
            let parts = [(&norm.query, 0, heads), (&norm.key, heads, both)];
            let parts = parts.map(|(norm, low, high)| {
                let part = self.b.slice(&qkv, 1, low, high);
                self.norm(&part, norm)
            });
            self.joined(&parts, 1)
        });
        let normed = normed.as_ref().unwrap_or(&qkv);
        let queries = self.rotated(normed, heads);
        let queries = self.kept(queries);
        let cache = self.cache(layer);
        let cache = self.append(&cache, normed, &qkv);
        self.updated(&cache);
        let mixed = self.attention(&queries, &cache, *window);
        let mixed = self.kept(mixed);
        self.linear(&mixed, output)
    }

    /// The MLP of `x`, RMS-normed with `norm`.
    fn mlp(&mut self, mlp: &Mlp, x: &Value, norm: &Norm) -> Value {
        let Mlp { gate, up, down, activation: Activation::Silu } = mlp;
        let [gate, up] = self.normed_pair(x, norm, [gate, up]);
        let silu = self.b.silu(&gate);
        let h = self.b.mul(&silu, &up);
        let h = self.kept(h);
        self.linear(&h, down)
    }

    /// `x`, RMS-normed over its last dimension.
    pub fn norm(&mut self, x: &Value, norm: &Norm) -> Value {
        let weight = self.vector(&norm.weight);
        self.b.rms_norm(x, &weight, norm.epsilon)
    }

    /// The embeddings of the tokens, `[rows, hidden_size]`.
    fn embed(&mut self) -> Value {
        let tokens = self.input(Source::Tokens);
        let table = self.matrix([&self.config.architecture.embedding]);
        let x = self.gather(&table, &tokens);
        self.kept(x)
    }
}

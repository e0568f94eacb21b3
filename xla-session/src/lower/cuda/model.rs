//! The decoder over the rows of a step, and the head over rows that are wanted.

use checkpoint::architecture::{Activation, Attention, Layer, Mlp, Norm, QkNorm};

use super::function::Function;
use super::{HIDDEN_ROWS, Source};
use crate::emit::builder::{Combine, ElementType, Generic, TensorType, Value};

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
        let normed = qk_norm.as_ref().map(|norms| self.normed_heads(&qkv, heads, norms));
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

    /// `x`, `[rows, queries, keys and values, head_dim]`, each of the `heads` queries RMS-normed with
    /// their norm, and the others with that of keys: nobody reads values here, and to leave them out
    /// would be a copy.
    fn normed_heads(&mut self, x: &Value, heads: usize, norms: &QkNorm) -> Value {
        let &[rows, all, width] = x.dims() else { unreachable!("heads have 3 dims") };
        let [query, key] = [&norms.query, &norms.key].map(|norm| self.vector(&norm.weight));
        let square = self.b.mul(x, x);
        let sum = self.b.reduce(&square, &[2], Combine::Add);
        let columns = self.b.splat_f32(width as f32, &[rows, all]);
        let mean = self.b.div(&sum, &columns);
        let eps = self.b.splat_f32(norms.query.epsilon as f32, &[rows, all]);
        let mean = self.b.add(&mean, &eps);
        let factor = self.b.unary("rsqrt", &mean);
        let body = format!(
            "%head = linalg.index 1 : index
             %queries = arith.constant {heads} : index
             %is_query = arith.cmpi ult, %head, %queries : index
             %weight = arith.select %is_query, %in2, %in3 : f32
             %scaled = arith.mulf %in0, %in1 : f32
             %normed = arith.mulf %scaled, %weight : f32
             linalg.yield %normed : f32"
        );
        let nest = Generic {
            loops: "r,h,d",
            inputs: &[(x, "r,h,d"), (&factor, "r,h"), (&query, "d"), (&key, "d")],
            result: "r,h,d",
            body: &body,
            config: None,
        };
        let into = self.b.empty(&[rows, all, width], None);
        let normed = self.b.generic(&nest, &into);
        self.kept(normed)
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

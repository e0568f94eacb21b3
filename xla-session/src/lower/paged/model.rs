//! The decoder over the rows of a step, and the head over rows that are wanted.

use checkpoint::architecture::{
    self, Attention, FeedForward, Given, Layer, LayerInputs, Mixer, Mlp, Norm, Parameter, QkNorm,
};

use super::function::Function;
use super::{HIDDEN_ROWS, Source};
use crate::emit::builder::{ElementType, TensorType, Value};

impl Function<'_> {
    /// From the tokens of a step to the residual stream behind the last layer.
    pub fn body(&mut self) {
        let architecture = &self.config.architecture;
        let mut x = self.embed(&architecture.embedding, architecture.embedding_scale);
        let inputs = architecture.layer_inputs.as_ref();
        let inputs = inputs.map(|of| (self.layer_inputs(of, &x), of.width()));
        for (index, layer) in self.config.architecture.layers.iter().enumerate() {
            let Layer {
                input_norm,
                mixer_norm,
                mlp_norm,
                mlp,
                output_norm,
                residual_scale,
                parallel,
                ..
            } = layer;
            let (before, norm) = (x.clone(), input_norm.as_ref());
            let h = match &layer.mixer {
                Mixer::Attention(attention) => self.self_attention(index, attention, &x, norm),
                Mixer::ShortConvolution(of) => self.short_convolution(index, of, &x, norm),
                Mixer::GatedDelta(_) => unreachable!("refused before"),
            };
            let h = self.normed_behind(h, mixer_norm.as_ref());
            let h = self.b.scaled(&h, *residual_scale);
            x = self.b.add(&x, &h);
            x = self.kept(x);
            let (read, norm) = match parallel {
                true => (&before, norm),
                false => (&x, mlp_norm.as_ref()),
            };
            let h = match mlp {
                FeedForward::Mlp(mlp) => self.mlp(mlp, read, norm),
                FeedForward::Experts(mixture) => self.experts(mixture, read, norm),
            };
            let h = self.normed_behind(h, output_norm.as_ref());
            let h = self.b.scaled(&h, *residual_scale);
            x = self.b.add(&x, &h);
            if let (Some(given), Some((inputs, width))) = (&layer.given, &inputs) {
                x = self.kept(x);
                let input = self.b.slice(inputs, 1, index * width, (index + 1) * width);
                x = self.given(given, &x, &input);
            }
            if let Some(scalar) = &layer.scalar {
                let scalar = self.vector(scalar);
                let scalar = self.b.reshape(&scalar, &[]);
                let scalar = self.b.broadcast(&scalar, x.dims(), &[]);
                x = self.b.mul(&x, &scalar);
            }
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
        let architecture = &config.architecture;
        let output = config.output().expect("a decoder has one");
        let logits = self.normed_product(&x, Some(&architecture.norm), &[output]);
        let logits = match &architecture.output_bias {
            Some(bias) => self.plus(&logits, bias),
            None => logits,
        };
        let architecture::Logits { scale, cap } = architecture.logits;
        let logits = self.b.scaled(&logits, scale);
        let logits = self.b.capped(&logits, cap);
        let logits = self.answered(&logits, Source::Logits);
        let picked = self.parts.argmax(self, &logits);
        self.answered(&picked, Source::Picked);
    }

    /// Of `x`, normed with `norm` if there is one.
    fn self_attention(
        &mut self,
        layer: usize,
        attention: &Attention,
        x: &Value,
        norm: Option<&Norm>,
    ) -> Value {
        let Attention { qk_norm, output, ropes, shared, value_norm, .. } = attention;
        let &Attention { heads, kv_heads, head_dim: width, .. } = attention;
        let own = attention.own_kv_heads();
        let (rows, both) = (self.rows, heads + own);
        let group: Vec<_> = attention.qkv.iter().collect();
        let weights: Vec<_> = group.iter().map(|linear| &linear.weight).collect();
        let qkv = self.normed_product(x, norm, &weights);
        let qkv = self.biased(qkv, &group);
        let qkv = self.kept(qkv);
        let qkv = self.b.reshape(&qkv, &[rows, both + own, width]);
        let mut ropes = *ropes;
        let mut of_heads = qkv.clone();
        if let Some(norms) = qk_norm {
            if norms.rotated {
                debug_assert!(ropes.is_none_or(|[of_queries, of_keys]| of_queries == of_keys));
                let rotated = self.rotated(&qkv, both, ropes.take().map(|[rope, _]| rope));
                of_heads = self.kept(rotated);
            }
            of_heads = self.parts.normed_heads(self, &of_heads, attention, norms);
        }
        let queries = self.rotated(&of_heads, heads, ropes.map(|[queries, _]| queries));
        let queries = self.kept(queries);
        let mut cache = self.cache(shared.unwrap_or(layer), [2 * kv_heads, width]);
        if shared.is_none() {
            let of_values = if value_norm.is_some() { &of_heads } else { &qkv };
            let rope = ropes.map(|[_, keys]| keys);
            cache = self.append(&cache, &of_heads, of_values, kv_heads, rope);
            self.updated(layer, &cache);
        }
        let mixed = self.parts.attention(self, &queries, &cache, attention);
        let mixed = self.kept(mixed);
        self.linear(&mixed, output)
    }

    /// The queries of `x` normed all together, and its keys: `[rows, queries and keys, head_dim]`.
    pub fn jointly_normed_heads(&mut self, x: &Value, heads: usize, norms: &QkNorm) -> Value {
        let &[rows, _, width] = x.dims() else { unreachable!("heads have 3 dims") };
        let of_keys = norms.key.as_ref().map(|key| (key, heads));
        let parts = [(&norms.query, 0)].into_iter().chain(of_keys).map(|(norm, before)| {
            let heads = norm.width() / width;
            let part = self.b.slice(x, 1, before, before + heads);
            let part = self.b.reshape(&part, &[rows, heads * width]);
            let part = self.kept(part);
            let part = self.norm(&part, norm);
            let part = self.kept(part);
            self.b.reshape(&part, &[rows, heads, width])
        });
        let parts: Vec<_> = parts.collect();
        self.joined(&parts, 1)
    }

    /// The MLP of `x`, normed with `norm` if there is one.
    pub(super) fn mlp(&mut self, mlp: &Mlp, x: &Value, norm: Option<&Norm>) -> Value {
        let Mlp { gate_up, down, activation, learned } = mlp;
        let wide = down.inputs();
        let h = match &gate_up[..] {
            [gate, up] => {
                let [gate, up] = self.normed_pair(x, norm, [gate, up]);
                self.b.gated(&gate, &up, *activation)
            }
            fused => {
                let fused: Vec<_> = fused.iter().collect();
                let weights: Vec<_> = fused.iter().map(|linear| &linear.weight).collect();
                let both = self.normed_product(x, norm, &weights);
                let both = self.biased(both, &fused);
                if mlp.is_gated() {
                    let both = self.kept(both);
                    let [gate, up] = [0, wide].map(|at| self.b.slice(&both, 1, at, at + wide));
                    self.b.gated(&gate, &up, *activation)
                } else {
                    let learned = (!learned.is_empty()).then(|| self.vectors(learned));
                    self.b.activated(&both, *activation, learned.as_ref())
                }
            }
        };
        let h = self.kept(h);
        self.linear(&h, down)
    }

    /// What the mixer or the MLP gave, normed with `norm` if there is one.
    fn normed_behind(&mut self, h: Value, norm: Option<&Norm>) -> Value {
        let Some(norm) = norm else { return h };
        let h = self.kept(h);
        let h = self.norm(&h, norm);
        self.kept(h)
    }

    /// `x`, normed over its last dimension.
    pub fn norm(&mut self, x: &Value, norm: &Norm) -> Value {
        self.parts.norm(self, x, norm)
    }

    /// The rows of the tokens in an embedding, times `scale`; `[rows, columns]`.
    fn embed(&mut self, embedding: &Parameter, scale: f32) -> Value {
        let tokens = self.input(Source::Tokens);
        let table = self.matrix(&[embedding]);
        let x = self.parts.gather(self, &table, &tokens);
        let x = self.b.scaled(&x, scale);
        self.kept(x)
    }

    /// What layers are given of the tokens, side by side, where `x` is what the first one reads.
    fn layer_inputs(&mut self, of: &LayerInputs, x: &Value) -> Value {
        let LayerInputs { embedding, scale, projection, norm } = of;
        let (rows, all, width) = (self.rows, projection.outputs(), of.width());
        let projected = self.linear(x, projection);
        let projected = self.kept(projected);
        let projected = self.b.reshape(&projected, &[rows * all / width, width]);
        let projected = self.norm(&projected, norm);
        let projected = self.kept(projected);
        let projected = self.b.reshape(&projected, &[rows, all]);
        let embedded = self.embed(embedding, *scale);
        let inputs = self.b.add(&projected, &embedded);
        self.kept(inputs)
    }

    /// `x`, with what a layer makes of its part of these.
    fn given(&mut self, given: &Given, x: &Value, input: &Value) -> Value {
        let gate = self.linear(x, &given.gate);
        let h = self.b.gated(&gate, input, given.activation);
        let h = self.kept(h);
        let h = self.linear(&h, &given.projection);
        let h = self.normed_behind(h, Some(&given.norm));
        self.b.add(x, &h)
    }
}

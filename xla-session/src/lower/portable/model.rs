//! The decoder.

use checkpoint::architecture::{
    self, Attention, FeedForward, Given, LayerInputs, Mixer, Mlp, Norm, Parameter,
};

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
        let mut caches: Vec<Cache> = Vec::new();
        let config_of = &config.architecture;
        let mut x = self.embed(&config_of.embedding, config_of.embedding_scale);
        let inputs =
            config_of.layer_inputs.as_ref().map(|of| (self.layer_inputs(of, &x), of.width()));
        for (index, layer) in config.architecture.layers.iter().enumerate() {
            let read = self.normed(&x, layer.input_norm.as_ref());
            let (h, cache) = match &layer.mixer {
                Mixer::Attention(attention) => {
                    let shared = attention.shared.map(|layer| &caches[layer]);
                    self.self_attention(index, attention, &read, &angles, shared)
                }
                Mixer::ShortConvolution(of) => self.short_convolution(index, of, &read),
                Mixer::GatedDelta(_) => unreachable!("refused before"),
            };
            caches.push(cache);
            let h = self.normed(&h, layer.mixer_norm.as_ref());
            let h = self.b.scaled(&h, layer.residual_scale);
            x = self.b.add(&x, &h);
            let read = if layer.parallel { read } else { self.normed(&x, layer.mlp_norm.as_ref()) };
            let h = match &layer.mlp {
                FeedForward::Mlp(mlp) => self.mlp(mlp, &read),
                FeedForward::Experts(experts) => self.experts(experts, &read),
            };
            let h = self.normed(&h, layer.output_norm.as_ref());
            let h = self.b.scaled(&h, layer.residual_scale);
            x = self.b.add(&x, &h);
            if let (Some(given), Some((inputs, width))) = (&layer.given, &inputs) {
                let input = self.b.slice(inputs, 1, index * width, (index + 1) * width);
                x = self.given(given, &x, &input);
            }
            if let Some(scalar) = &layer.scalar {
                let scalar = self.vector(scalar);
                let scalar = self.b.reshape(&scalar, &[]);
                let scalar = self.b.broadcast(&scalar, x.dims(), &[]);
                x = self.b.mul(&x, &scalar);
            }
        }
        let logits = self.last_logits(&x);
        let token = self.argmax(&logits);
        let mut results = vec![token, logits];
        let own = config.architecture.layers.iter().zip(caches);
        let own = own.filter(|(layer, _)| layer.mixer.key_width() > 0);
        results.extend(own.flat_map(|(_, cache)| [cache.keys, cache.values]));
        results
    }

    fn self_attention(
        &mut self,
        layer: usize,
        attention: &Attention,
        x: &Value,
        angles: &[Angles],
        shared: Option<&Cache>,
    ) -> (Value, Cache) {
        let Attention { qkv, qk_norm, output, .. } = attention;
        let &Attention { heads, head_dim: width, .. } = attention;
        let kv_heads = attention.own_kv_heads();
        let rows = self.rows;
        let mut qkv = self.linears(x, qkv);
        if let Some(latent) = &attention.latent {
            qkv = self.expanded(attention, latent, &qkv);
        }
        let mut ropes = attention.ropes.map(|at| at.map(|at| &angles[at]));
        let rotated = match (qk_norm, &mut ropes) {
            (Some(norm), ropes @ Some(_)) if norm.rotated => {
                let both = self.b.slice(&qkv, 1, 0, (heads + kv_heads) * width);
                let both = self.b.reshape(&both, &[rows, heads + kv_heads, width]);
                let both = self.rotated(&both, heads, ropes.take());
                self.b.reshape(&both, &[rows, (heads + kv_heads) * width])
            }
            _ => qkv.clone(),
        };
        let normed = qk_norm.as_ref().map(|norm| {
            let of_keys = norm.key.as_ref().map(|key| (key, heads, kv_heads));
            let parts = [(&norm.query, 0, heads)].into_iter().chain(of_keys);
            let parts: Vec<_> = parts
                .map(|(norm, before, heads)| {
                    let part = self.b.slice(&rotated, 1, before * width, (before + heads) * width);
                    let norms = heads * width / norm.width();
                    let part = self.b.reshape(&part, &[rows, norms, norm.width()]);
                    let part = self.norm(&part, norm);
                    self.b.reshape(&part, &[rows, heads, width])
                })
                .collect();
            match &parts[..] {
                [queries] => queries.clone(),
                parts => self.b.concat(parts, 1),
            }
        });
        let both = normed.unwrap_or_else(|| {
            let both = self.b.slice(&qkv, 1, 0, (heads + kv_heads) * width);
            self.b.reshape(&both, &[rows, heads + kv_heads, width])
        });
        let queries = self.rotated(&both, heads, ropes);
        let cache = shared.cloned().unwrap_or_else(|| {
            let all = heads + kv_heads;
            let keys = self.b.slice(&queries, 1, heads, all);
            let values = self.b.slice(&qkv, 1, all * width, (all + kv_heads) * width);
            let values = self.b.reshape(&values, &[rows, kv_heads, width]);
            let values = match attention.value_norm {
                Some(epsilon) => self.b.rms_normed(&values, epsilon),
                None => values,
            };
            self.append(layer, &keys, &values)
        });
        let mut mixed = self.attention(&queries, &cache, attention);
        if let Some(latent) = &attention.latent {
            mixed = self.narrowed(attention, latent, mixed);
        }
        (self.linear(&mixed, output), cache)
    }

    pub(super) fn mlp(&mut self, mlp: &Mlp, x: &Value) -> Value {
        let Mlp { gate_up, down, activation, learned } = mlp;
        let wide = down.inputs();
        let both = self.linears(x, gate_up);
        let h = if mlp.is_gated() {
            let gate = self.b.slice(&both, 1, 0, wide);
            let up = self.b.slice(&both, 1, wide, 2 * wide);
            self.b.gated(&gate, &up, *activation)
        } else {
            let learned = self.numbers(learned);
            self.b.activated(&both, *activation, learned.as_ref())
        };
        self.linear(&h, down)
    }

    /// What an activation has learned, one number behind the other, if anything.
    fn numbers(&mut self, learned: &[Parameter]) -> Option<Value> {
        let some = !learned.is_empty();
        some.then(|| self.vectors(&learned.iter().collect::<Vec<_>>()))
    }

    fn normed(&mut self, x: &Value, norm: Option<&Norm>) -> Value {
        norm.map_or_else(|| x.clone(), |norm| self.norm(x, norm))
    }

    pub(super) fn norm(&mut self, x: &Value, norm: &Norm) -> Value {
        let weight = self.vector(&norm.weight);
        let bias = norm.bias.as_ref().map(|bias| self.vector(bias));
        self.b.norm(x, &weight, bias.as_ref(), norm)
    }

    /// The rows of this call's tokens in an embedding, times `scale`; `[rows, columns]`.
    fn embed(&mut self, embedding: &Parameter, scale: f32) -> Value {
        let tokens = self.argument(Source::Tokens, &[self.rows], ElementType::I32);
        let table = self.matrix(&[embedding]);
        let rows = self.b.gather_rows(&table.weights, &tokens);
        let rows = self.b.convert(&rows, ElementType::F32);
        self.b.scaled(&rows, scale)
    }

    /// What layers are given of this call's tokens, side by side, where `x` is what the first one reads.
    fn layer_inputs(&mut self, of: &LayerInputs, x: &Value) -> Value {
        let LayerInputs { embedding, scale, projection, norm } = of;
        let (all, width) = (projection.outputs(), of.width());
        let projected = self.linear(x, projection);
        let projected = self.b.reshape(&projected, &[self.rows, all / width, width]);
        let projected = self.norm(&projected, norm);
        let projected = self.b.reshape(&projected, &[self.rows, all]);
        let rows = self.embed(embedding, *scale);
        self.b.add(&projected, &rows)
    }

    /// `x`, with what a layer makes of its part of these.
    fn given(&mut self, given: &Given, x: &Value, input: &Value) -> Value {
        let gate = self.linear(x, &given.gate);
        let h = self.b.gated(&gate, input, given.activation);
        let h = self.linear(&h, &given.projection);
        let h = self.norm(&h, &given.norm);
        self.b.add(x, &h)
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
        let logits = self.product(&row, &[config.output().expect("a decoder has one")]);
        let logits = match &config.architecture.output_bias {
            Some(bias) => self.plus(&logits, bias),
            None => logits,
        };
        let architecture::Logits { scale, cap } = config.architecture.logits;
        let logits = self.b.scaled(&logits, scale);
        let logits = self.b.capped(&logits, cap);
        self.b.reshape(&logits, &[config.vocab_size])
    }
}

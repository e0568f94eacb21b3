//! Parts as most families have them, under the names that most give them; a family changes what is its
//! own.

use std::iter::once;

use super::Sizes;
use crate::Result;
use crate::architecture::{
    Activation, Architecture, Attention, FeedForward, Layer, Logits, Mixer, Mlp, Module, Norm,
    QkNorm,
};
use crate::keys::Keys;
use crate::rope::Rope;

impl Sizes {
    /// Width of all queries of a row.
    pub fn query_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of all keys of a row, and of its values.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// A norm as wide as the residual stream.
    pub fn norm(&self, module: &Module, name: &str) -> Norm {
        module.norm(name, self.hidden_size, self.rms_norm_eps)
    }

    /// `module.self_attn`: three projections, which have a bias or not, and one behind, which has one or
    /// not; the first rope, all keys, scores over the root of the head's width.
    pub fn attention(&self, module: &Module, [bias, output_bias]: [bool; 2]) -> Attention {
        let module = module.at("self_attn");
        let (queries, keys, hidden) = (self.query_width(), self.kv_width(), self.hidden_size);
        Attention {
            gated: false,
            qkv: vec![
                module.linear("q_proj", [queries, hidden], bias),
                module.linear("k_proj", [keys, hidden], bias),
                module.linear("v_proj", [keys, hidden], bias),
            ],
            latent: None,
            shared: None,
            qk_norm: None,
            value_norm: None,
            ropes: Some([0; 2]),
            output: module.linear("o_proj", [hidden, queries], output_bias),
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            scale: 1.0 / (self.head_dim as f32).sqrt(),
            cap: None,
            window: None,
            both_ways: false,
            sinks: None,
        }
    }

    /// Norms of each head's queries and keys: `module.self_attn.{q,k}_norm`.
    pub fn qk_norm(&self, module: &Module) -> QkNorm {
        let module = module.at("self_attn");
        let norm = |name| module.norm(name, self.head_dim, self.rms_norm_eps);
        QkNorm { query: norm("q_norm"), key: Some(norm("k_norm")), rotated: false }
    }

    /// Norms of all queries and of all keys of a row: `module.self_attn.{q,k}_norm`.
    pub fn joint_qk_norm(&self, module: &Module) -> QkNorm {
        let module = module.at("self_attn");
        let norm = |name, width| module.norm(name, width, self.rms_norm_eps);
        let query = norm("q_norm", self.query_width());
        QkNorm { query, key: Some(norm("k_norm", self.kv_width())), rotated: false }
    }

    /// `module.mlp`: three projections, with biases or without.
    pub fn mlp(&self, module: &Module, bias: bool, activation: Activation) -> FeedForward {
        let names = ["gate_proj", "up_proj", "down_proj"];
        let (module, wide) = (module.at("mlp"), self.intermediate_size);
        FeedForward::Mlp(self.mlp_of(&module, names, wide, bias, activation))
    }

    /// An MLP of this width, whose projections are called as `names` says: to gate, to up, and back.
    pub fn mlp_of(
        &self,
        module: &Module,
        [gate, up, down]: [&str; 3],
        wide: usize,
        bias: bool,
        activation: Activation,
    ) -> Mlp {
        let hidden = self.hidden_size;
        Mlp {
            gate_up: [gate, up].map(|name| module.linear(name, [wide, hidden], bias)).into(),
            down: module.linear(down, [hidden, wide], bias),
            activation,
            learned: Vec::new(),
        }
    }

    /// `module.mlp` without a gate, whose projections are called as `names` says: to up, and back.
    pub fn ungated_mlp(
        &self,
        module: &Module,
        [up, down]: [&str; 2],
        bias: bool,
        activation: Activation,
    ) -> Mlp {
        let (module, wide, hidden) = (module.at("mlp"), self.intermediate_size, self.hidden_size);
        Mlp {
            gate_up: vec![module.linear(up, [wide, hidden], bias)],
            down: module.linear(down, [hidden, wide], bias),
            activation,
            learned: Vec::new(),
        }
    }

    /// `module.mlp` that squares what is above zero and has no gate.
    ///
    /// # Errors
    ///
    /// `hidden_act` says something else.
    pub fn squared_mlp(&self, keys: &Keys) -> Result<impl Fn(&Module) -> FeedForward> {
        if keys.string("hidden_act")?.is_some_and(|it| it != "relu2") {
            return Err(keys.refuse("hidden_act", "supported is \"relu2\""));
        }
        let bias = keys.boolean("mlp_bias")?.unwrap_or(false);
        let (names, activation) = (["up_proj", "down_proj"], Activation::ReluSquared);
        Ok(move |layer: &Module| FeedForward::Mlp(self.ungated_mlp(layer, names, bias, activation)))
    }

    /// `module.mlp` whose gate and up are one projection.
    pub fn fused_mlp(&self, module: &Module, activation: Activation) -> FeedForward {
        let (module, names) = (module.at("mlp"), ["gate_up_proj", "down_proj"]);
        FeedForward::Mlp(self.fused_mlp_of(&module, names, self.intermediate_size, activation))
    }

    /// An MLP of this width, whose projections are called as `names` says: to gate and up, and back.
    pub fn fused_mlp_of(
        &self,
        module: &Module,
        [gate_up, down]: [&str; 2],
        wide: usize,
        activation: Activation,
    ) -> Mlp {
        let hidden = self.hidden_size;
        Mlp {
            gate_up: vec![module.linear(gate_up, [2 * wide, hidden], false)],
            down: module.linear(down, [hidden, wide], false),
            activation,
            learned: Vec::new(),
        }
    }

    /// Norms before attention and before the MLP.
    pub fn layer(&self, module: &Module, attention: Attention, mlp: FeedForward) -> Layer {
        Layer {
            input_norm: Some(self.norm(module, "input_layernorm")),
            mixer: Mixer::Attention(Box::new(attention)),
            mixer_norm: None,
            mlp_norm: Some(self.norm(module, "post_attention_layernorm")),
            mlp,
            output_norm: None,
            residual_scale: 1.0,
            parallel: false,
            norms_stream: false,
            given: None,
            scalar: None,
        }
    }

    /// A model of layers that `layer` makes of their modules and numbers.
    pub fn decoder(
        &self,
        ropes: Vec<Rope>,
        layer: impl Fn(&Module, usize) -> Layer,
    ) -> Architecture {
        let model = Module::new("model");
        let layers = model.at("layers");
        Architecture {
            embedding: model.at("embed_tokens").embedding(self.vocab_size, self.hidden_size),
            embedding_scale: 1.0,
            positions: None,
            texts: None,
            embedding_norm: None,
            distances: None,
            layer_inputs: None,
            ropes,
            layers: (0..self.layers).map(|index| layer(&layers.at(index), index)).collect(),
            norm: self.norm(&model, "norm"),
            output: Some(Module::new("lm_head").output(self.vocab_size, self.hidden_size)),
            output_bias: None,
            logits: Logits { scale: 1.0, cap: None },
        }
    }
}

impl Sizes {
    /// As [`decoder`](Self::decoder), whose norms are layer norms with biases, of `epsilon`.
    pub fn layer_normed_decoder(
        &self,
        ropes: Vec<Rope>,
        epsilon: f64,
        layer: impl Fn(&Module, usize) -> Layer,
    ) -> Architecture {
        let norm = |module: &Module, name| module.layer_norm(name, self.hidden_size, epsilon);
        let model = self.decoder(ropes, |module, index| {
            let layer = layer(module, index);
            let input_norm = layer.input_norm.map(|_| norm(module, "input_layernorm"));
            let mlp_norm = layer.mlp_norm.map(|_| norm(module, "post_attention_layernorm"));
            Layer { input_norm, mlp_norm, ..layer }
        });
        Architecture { norm: norm(&Module::new("model"), "norm"), ..model }
    }
}

/// A model of norms of one plus their weight, but for those of linear attention, which are gated. Converters to
/// GGUF have added the one, and say so in a key that only this program knows.
pub(super) fn one_more(keys: &Keys, mut architecture: Architecture) -> Architecture {
    if keys.map.contains_key(crate::gguf::NORMS_ARE_WHOLE) {
        return architecture;
    }
    architecture.norm.offset = 1.0;
    for layer in &mut architecture.layers {
        let of_heads = layer.attention_mut().and_then(|it| it.qk_norm.as_mut());
        for norm in of_heads.into_iter().flat_map(|it| once(&mut it.query).chain(&mut it.key)) {
            norm.offset = 1.0;
        }
        let Layer { input_norm, mixer_norm, mlp_norm, output_norm, .. } = layer;
        for norm in [input_norm, mixer_norm, mlp_norm, output_norm].into_iter().flatten() {
            norm.offset = 1.0;
        }
    }
    architecture
}

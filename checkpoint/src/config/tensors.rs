//! Which tensors a model is made of, under Hugging Face's names.

use super::ModelConfig;

/// A tensor that the model needs.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TensorSpec {
    /// Its name in the checkpoint: "model.layers.0.self_attn.q_proj.weight".
    pub name: String,
    /// Its shape: `[out, in]` for a projection, `[width]` for a bias or norm.
    pub shape: Vec<usize>,
}

impl TensorSpec {
    fn new(name: impl Into<String>, shape: impl Into<Vec<usize>>) -> Self {
        Self { name: name.into(), shape: shape.into() }
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// A projection `y = W x + b`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinearSpec {
    /// `W`, `[out, in]`.
    pub weight: TensorSpec,
    /// `b`, `[out]`.
    pub bias: Option<TensorSpec>,
}

impl LinearSpec {
    fn new(prefix: &str, name: &str, out: usize, inner: usize, bias: bool) -> Self {
        Self {
            weight: TensorSpec::new(format!("{prefix}{name}.weight"), [out, inner]),
            bias: bias.then(|| TensorSpec::new(format!("{prefix}{name}.bias"), [out])),
        }
    }

    /// Width of the result.
    pub fn out_features(&self) -> usize {
        self.weight.shape[0]
    }

    /// Width of the input.
    pub fn in_features(&self) -> usize {
        self.weight.shape[1]
    }
}

/// The tensors of one layer, in the order in which a token meets them.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LayerTensors {
    /// RMS norm before attention, `[hidden_size]`.
    pub input_norm: TensorSpec,
    /// Query projection, `[heads * head_dim, hidden_size]`.
    pub q_proj: LinearSpec,
    /// Key projection, `[kv_heads * head_dim, hidden_size]`.
    pub k_proj: LinearSpec,
    /// Value projection, `[kv_heads * head_dim, hidden_size]`.
    pub v_proj: LinearSpec,
    /// RMS norm of each query head, `[head_dim]` (Qwen3).
    pub q_norm: Option<TensorSpec>,
    /// RMS norm of each key head, `[head_dim]` (Qwen3).
    pub k_norm: Option<TensorSpec>,
    /// Output projection of attention, `[hidden_size, heads * head_dim]`.
    pub o_proj: LinearSpec,
    /// RMS norm before the MLP, `[hidden_size]`.
    pub post_attention_norm: TensorSpec,
    /// Gate projection, `[intermediate_size, hidden_size]`.
    pub gate_proj: LinearSpec,
    /// Up projection, `[intermediate_size, hidden_size]`.
    pub up_proj: LinearSpec,
    /// Down projection, `[hidden_size, intermediate_size]`.
    pub down_proj: LinearSpec,
}

impl LayerTensors {
    /// All of them, in the same order.
    pub fn all(&self) -> impl Iterator<Item = &TensorSpec> {
        fn linear(linear: &LinearSpec) -> impl Iterator<Item = &TensorSpec> {
            std::iter::once(&linear.weight).chain(&linear.bias)
        }
        std::iter::once(&self.input_norm)
            .chain(linear(&self.q_proj))
            .chain(linear(&self.k_proj))
            .chain(linear(&self.v_proj))
            .chain(&self.q_norm)
            .chain(&self.k_norm)
            .chain(linear(&self.o_proj))
            .chain(std::iter::once(&self.post_attention_norm))
            .chain(linear(&self.gate_proj))
            .chain(linear(&self.up_proj))
            .chain(linear(&self.down_proj))
    }
}

impl ModelConfig {
    /// The embedding matrix, `[vocab_size, hidden_size]`.
    pub fn embedding(&self) -> TensorSpec {
        TensorSpec::new("model.embed_tokens.weight", [self.vocab_size, self.hidden_size])
    }

    /// The tensors of layer `index`.
    pub fn layer(&self, index: usize) -> LayerTensors {
        let hidden = self.hidden_size;
        let q = self.num_attention_heads * self.head_dim;
        let kv = self.num_key_value_heads * self.head_dim;
        let layer = format!("model.layers.{index}.");
        let norm = |name: &str, width| TensorSpec::new(format!("{layer}{name}.weight"), [width]);
        let attention = |name, out, inner, bias| {
            LinearSpec::new(&format!("{layer}self_attn."), name, out, inner, bias)
        };
        let mlp = |name, out, inner| {
            LinearSpec::new(&format!("{layer}mlp."), name, out, inner, self.mlp_bias)
        };
        let head_norm = |name| self.qk_norm.then(|| norm(name, self.head_dim));
        LayerTensors {
            input_norm: norm("input_layernorm", hidden),
            q_proj: attention("q_proj", q, hidden, self.qkv_bias),
            k_proj: attention("k_proj", kv, hidden, self.qkv_bias),
            v_proj: attention("v_proj", kv, hidden, self.qkv_bias),
            q_norm: head_norm("self_attn.q_norm"),
            k_norm: head_norm("self_attn.k_norm"),
            o_proj: attention("o_proj", hidden, q, self.o_bias),
            post_attention_norm: norm("post_attention_layernorm", hidden),
            gate_proj: mlp("gate_proj", self.intermediate_size, hidden),
            up_proj: mlp("up_proj", self.intermediate_size, hidden),
            down_proj: mlp("down_proj", hidden, self.intermediate_size),
        }
    }

    /// The RMS norm after the last layer, `[hidden_size]`.
    pub fn final_norm(&self) -> TensorSpec {
        TensorSpec::new("model.norm.weight", [self.hidden_size])
    }

    /// The output projection, `[vocab_size, hidden_size]`: the [`embedding`](Self::embedding)
    /// where the two are tied.
    pub fn lm_head(&self) -> TensorSpec {
        if self.tie_word_embeddings {
            self.embedding()
        } else {
            TensorSpec::new("lm_head.weight", [self.vocab_size, self.hidden_size])
        }
    }

    /// Every tensor that the model needs, each once, in the order in which a token meets them.
    pub fn tensors(&self) -> Vec<TensorSpec> {
        let mut all = vec![self.embedding()];
        for index in 0..self.num_hidden_layers {
            all.extend(self.layer(index).all().cloned());
        }
        all.push(self.final_norm());
        if !self.tie_word_embeddings {
            all.push(self.lm_head());
        }
        all
    }

    /// Number of parameters.
    pub fn parameters(&self) -> usize {
        self.tensors().iter().map(TensorSpec::elements).sum()
    }
}

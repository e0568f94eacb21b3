//! What a model computes, as data: parts that hold their parameters.
//!
//! A [family](crate::families) composes them from its `config.json`; lowerings walk them. Whatever
//! has to know all weights (checks, made-up weights, formats, counts) walks
//! [`Architecture::parameters`], so that a parameter is named once, where its part is made.
//!
//! Parts have what some family of today needs. What a next one brings goes into the part that it
//! changes: an offset into [`Norm`], norms behind attention and MLP into [`Layer`], a scale, a cap of
//! scores or a rope of its own into [`Attention`]; an [`Mlp`] of experts makes [`Layer::mlp`] an enum,
//! and projections that lie in one tensor make [`Parameter`] say which of its rows are meant.

use std::fmt::Display;
use std::iter::once;

/// A decoder: the order of its fields is that in which a token meets them.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Architecture {
    /// A row for each token, `[vocab_size, hidden_size]`.
    pub embedding: Parameter,
    /// At least one.
    pub layers: Vec<Layer>,
    /// Of the residual stream behind the last layer.
    pub norm: Norm,
    /// The model's own projection to logits, `[vocab_size, hidden_size]`; where
    /// [`tie_word_embeddings`](crate::config::ModelConfig::tie_word_embeddings) holds the embedding is
    /// in its place, and a checkpoint need not have it.
    pub output: Parameter,
}

/// `x += attention(input_norm(x)); x += mlp(mlp_norm(x))`.
#[derive(Debug, Clone, PartialEq)]
pub struct Layer {
    /// Before attention.
    pub input_norm: Norm,
    /// Mixes rows of a sequence.
    pub attention: Attention,
    /// Before the MLP.
    pub mlp_norm: Norm,
    /// Changes each row by itself.
    pub mlp: Mlp,
}

/// Causal attention with rotary embeddings, scores scaled by `1 / sqrt(head_dim)`.
#[derive(Debug, Clone, PartialEq)]
pub struct Attention {
    /// `[heads * head_dim, hidden_size]`.
    pub query: Linear,
    /// `[kv_heads * head_dim, hidden_size]`.
    pub key: Linear,
    /// `[kv_heads * head_dim, hidden_size]`.
    pub value: Linear,
    /// Of queries and keys, before they are rotated.
    pub qk_norm: Option<QkNorm>,
    /// `[hidden_size, heads * head_dim]`.
    pub output: Linear,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of one head; even.
    pub head_dim: usize,
    /// How many of the latest tokens a row sees, itself included; `None` is all of them.
    pub window: Option<usize>,
}

/// Norms of each head by itself, `[head_dim]`.
#[derive(Debug, Clone, PartialEq)]
pub struct QkNorm {
    /// Of each query head.
    pub query: Norm,
    /// Of each key head.
    pub key: Norm,
}

/// `down(activation(gate(x)) * up(x))` (Shazeer, GLU variants).
#[derive(Debug, Clone, PartialEq)]
pub struct Mlp {
    /// `[intermediate_size, hidden_size]`.
    pub gate: Linear,
    /// `[intermediate_size, hidden_size]`.
    pub up: Linear,
    /// `[hidden_size, intermediate_size]`.
    pub down: Linear,
    /// Of the gate.
    pub activation: Activation,
}

/// What an MLP's gate goes through; exhaustive, so that every lowering answers for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `x / (1 + exp(-x))`.
    Silu,
}

/// An RMS norm.
#[derive(Debug, Clone, PartialEq)]
pub struct Norm {
    /// `[width]`.
    pub weight: Parameter,
    /// What keeps the root from zero.
    pub epsilon: f64,
}

/// A projection `y = W x + b`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Linear {
    /// `W`, `[outputs, inputs]`.
    pub weight: Parameter,
    /// `b`, `[outputs]`.
    pub bias: Option<Parameter>,
}

/// A tensor that the model needs.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Parameter {
    /// Its name in the checkpoint: "model.layers.0.self_attn.q_proj.weight".
    pub name: String,
    /// Its shape: `[outputs, inputs]` for a matrix, `[width]` for a bias or norm.
    pub shape: Vec<usize>,
    /// What it is for.
    pub role: Role,
}

/// What a parameter is for: how it may be stored, and what values it has before training.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// A row for each token.
    Embedding,
    /// Multiplies what a norm has scaled: ones before training.
    Norm,
    /// A matrix between embedding and output.
    Matrix,
    /// Is added to what a matrix gave.
    Bias,
    /// The matrix that gives logits.
    Output,
}

/// A module of the checkpoint, by its path: "model.layers.0". Makes the parameters in it.
#[derive(Debug, Clone)]
pub(crate) struct Module(String);

impl Module {
    /// The outermost module called `name`.
    pub fn new(name: &str) -> Self {
        Self(name.into())
    }

    /// The module `name` in this one.
    pub fn at(&self, name: impl Display) -> Self {
        Self(format!("{}.{name}", self.0))
    }

    fn parameter(&self, name: &str, shape: &[usize], role: Role) -> Parameter {
        Parameter { name: format!("{}.{name}", self.0), shape: shape.into(), role }
    }

    /// The weight of the embedding that this module is.
    pub fn embedding(&self, tokens: usize, width: usize) -> Parameter {
        self.parameter("weight", &[tokens, width], Role::Embedding)
    }

    /// The weight of the output projection that this module is.
    pub fn output(&self, tokens: usize, width: usize) -> Parameter {
        self.parameter("weight", &[tokens, width], Role::Output)
    }

    /// The norm called `name`.
    pub fn norm(&self, name: &str, width: usize, epsilon: f64) -> Norm {
        Norm { weight: self.at(name).parameter("weight", &[width], Role::Norm), epsilon }
    }

    /// The projection called `name` from `inputs` to `outputs`.
    pub fn linear(&self, name: &str, [outputs, inputs]: [usize; 2], bias: bool) -> Linear {
        let module = self.at(name);
        Linear {
            weight: module.parameter("weight", &[outputs, inputs], Role::Matrix),
            bias: bias.then(|| module.parameter("bias", &[outputs], Role::Bias)),
        }
    }
}

impl Architecture {
    /// Every parameter, [`output`](Self::output) too, in the order in which a token meets them.
    pub fn parameters(&self) -> impl Iterator<Item = &Parameter> {
        once(&self.embedding)
            .chain(self.layers.iter().flat_map(Layer::parameters))
            .chain([&self.norm.weight, &self.output])
    }
}

impl Layer {
    fn parameters(&self) -> impl Iterator<Item = &Parameter> {
        let Self { input_norm, attention, mlp_norm, mlp } = self;
        once(&input_norm.weight)
            .chain(attention.parameters())
            .chain(once(&mlp_norm.weight))
            .chain(mlp.parameters())
    }
}

impl Attention {
    fn parameters(&self) -> impl Iterator<Item = &Parameter> {
        let norms = self.qk_norm.iter().flat_map(|it| [&it.query.weight, &it.key.weight]);
        [&self.query, &self.key, &self.value]
            .into_iter()
            .flat_map(Linear::parameters)
            .chain(norms)
            .chain(self.output.parameters())
    }
}

impl Mlp {
    fn parameters(&self) -> impl Iterator<Item = &Parameter> {
        [&self.gate, &self.up, &self.down].into_iter().flat_map(Linear::parameters)
    }
}

impl Linear {
    fn parameters(&self) -> impl Iterator<Item = &Parameter> {
        once(&self.weight).chain(&self.bias)
    }

    /// Width of the result.
    pub fn outputs(&self) -> usize {
        self.weight.shape[0]
    }

    /// Width of what it reads.
    pub fn inputs(&self) -> usize {
        self.weight.shape[1]
    }
}

impl Norm {
    /// Width of what it scales.
    pub fn width(&self) -> usize {
        self.weight.shape[0]
    }
}

impl Parameter {
    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

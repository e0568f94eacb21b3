//! Parameters of a checkpoint by the paths that they have there.

use std::fmt::Display;

use super::{Linear, Norm, Parameter, Role};

/// A module of the checkpoint, by its path: "model.layers.0". Makes the parameters in it.
#[derive(Debug, Clone)]
pub(crate) struct Module(String);

impl Module {
    /// The outermost module called `name`.
    pub fn new(name: &str) -> Self {
        Self(name.into())
    }

    /// That in which all are.
    pub fn root() -> Self {
        Self(String::new())
    }

    /// The module `name` in this one.
    pub fn at(&self, name: impl Display) -> Self {
        match self.0.as_str() {
            "" => Self(name.to_string()),
            within => Self(format!("{within}.{name}")),
        }
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
        let weight = self.at(name).parameter("weight", &[width], Role::Norm);
        Norm { weight, offset: 0.0, bias: None, epsilon, centred: false }
    }

    /// The layer norm called `name`, with a bias.
    pub fn layer_norm(&self, name: &str, width: usize, epsilon: f64) -> Norm {
        let bias = Some(self.at(name).bias("bias", width));
        Norm { bias, centred: true, ..self.norm(name, width, epsilon) }
    }

    /// The norm called `name` of so many heads, each of which has weights of its own.
    pub fn head_norm(&self, name: &str, heads: usize, width: usize, epsilon: f64) -> Norm {
        let weight = self.at(name).parameter("weight", &[heads, width], Role::Norm);
        Norm { weight, ..self.norm(name, width, epsilon) }
    }

    /// The small projection called `name` that decides.
    pub fn router(&self, name: &str, [outputs, inputs]: [usize; 2], bias: bool) -> Linear {
        let weight = self.at(name).parameter("weight", &[outputs, inputs], Role::Router);
        Linear { weight, ..self.linear(name, [outputs, inputs], bias) }
    }

    /// The number called `name` that the residual stream is multiplied with.
    pub fn scalar(&self, name: &str) -> Parameter {
        self.parameter(name, &[1], Role::Norm)
    }

    /// The taps called `name` of a convolution over so many rows.
    pub fn taps(&self, name: &str, width: usize, rows: usize) -> Parameter {
        self.at(name).parameter("weight", &[width, 1, rows], Role::Taps)
    }

    /// The decays called `name`, one for each head.
    pub fn decay(&self, name: &str, heads: usize) -> Parameter {
        self.parameter(name, &[heads], Role::Decay)
    }

    /// A vector called `name` that is added.
    pub fn bias(&self, name: &str, width: usize) -> Parameter {
        self.parameter(name, &[width], Role::Bias)
    }

    /// The number called `name`, a vector of one or no vector.
    pub fn number(&self, name: &str, shape: &[usize]) -> Parameter {
        self.parameter(name, shape, Role::Activation)
    }

    /// The scores that this module has, of buckets of distances.
    pub fn distances(&self, buckets: usize, heads: usize) -> Parameter {
        self.parameter("weight", &[buckets, heads], Role::Sinks)
    }

    /// The sinks called `name`, one for each head.
    pub fn sinks(&self, name: &str, heads: usize) -> Parameter {
        self.parameter(name, &[heads], Role::Sinks)
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

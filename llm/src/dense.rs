//! Small layers behind a model, computed here: of a vector another one.

use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use xla_session::checkpoint::{Checkpoint, LoadMode};

use crate::sentence_transformers::read;

/// `activation(W x + b)` of a vector.
#[derive(Debug, Clone, PartialEq)]
pub struct Dense {
    /// `W`, `[outputs, inputs]`.
    weight: Vec<f32>,
    /// `b`, `[outputs]`, or nothing.
    bias: Vec<f32>,
    inputs: usize,
    activation: Activation,
}

/// What becomes of each number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Activation {
    Identity,
    Tanh,
    Relu,
    /// By `erf`.
    Gelu,
}

impl Activation {
    fn of(self, x: f32) -> f32 {
        match self {
            Self::Identity => x,
            Self::Tanh => x.tanh(),
            Self::Relu => x.max(0.0),
            Self::Gelu => 0.5 * x * (1.0 + libm::erff(x * std::f32::consts::FRAC_1_SQRT_2)),
        }
    }
}

/// A module `Dense` of sentence-transformers.
#[derive(Deserialize)]
struct Config {
    in_features: usize,
    out_features: usize,
    #[serde(default = "yes")]
    bias: bool,
    activation_function: Option<String>,
}

fn yes() -> bool {
    true
}

impl Dense {
    /// The module in `folder`.
    ///
    /// # Errors
    ///
    /// A file is missing or damaged, or its activation is another one than those here.
    pub fn read(folder: &Path) -> Result<Self> {
        let path = folder.join("config.json");
        let config: Option<Config> = read(&path)?;
        let Config { in_features, out_features, bias, activation_function } =
            config.with_context(|| {
                format!("{}: is missing: fetch it again (`iree-llm pull`)", path.display())
            })?;
        // Its class in PyTorch, "torch.nn.modules.activation.Tanh", which is the module's own default.
        let class = activation_function.as_deref().unwrap_or("Tanh");
        let activation = match class.rsplit('.').next() {
            Some("Identity") => Activation::Identity,
            Some("Tanh") => Activation::Tanh,
            _ => bail!(
                "{}: `activation_function` is {class:?}: supported are Identity and Tanh",
                path.display()
            ),
        };
        let checkpoint = Checkpoint::open(folder, LoadMode::Mmap)?;
        Self::of(&checkpoint, "linear", [out_features, in_features], bias, activation)
    }

    /// The layer called `name` in `checkpoint`.
    pub(crate) fn of(
        checkpoint: &Checkpoint,
        name: &str,
        [outputs, inputs]: [usize; 2],
        bias: bool,
        activation: Activation,
    ) -> Result<Self> {
        if inputs == 0 || outputs == 0 {
            bail!("{name}: a layer of {inputs} inputs and {outputs} outputs");
        }
        let tensor = |part: &str, shape: &[usize]| {
            Ok::<_, anyhow::Error>(checkpoint.tensor(&format!("{name}.{part}"), shape)?.to_f32())
        };
        let weight = tensor("weight", &[outputs, inputs])?;
        let bias = if bias { tensor("bias", &[outputs])? } else { Vec::new() };
        Ok(Self { weight, bias, inputs, activation })
    }

    /// Numbers of what comes of a vector.
    pub fn outputs(&self) -> usize {
        self.weight.len() / self.inputs
    }

    /// Numbers of what goes in.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// What becomes of `x`, `[inputs]`.
    pub fn apply(&self, x: &[f32]) -> Vec<f32> {
        let biases = self.bias.iter().copied().chain(std::iter::repeat(0.0));
        let rows = self.weight.chunks_exact(self.inputs).zip(biases);
        let products = rows.map(|(row, bias)| {
            // Parts that are added up side by side.
            let mut sums = [0.0f32; 16];
            let (parts, rest) = row.as_chunks::<16>();
            for (row, x) in parts.iter().zip(x.as_chunks::<16>().0) {
                sums.iter_mut().zip(row.iter().zip(x)).for_each(|(sum, (w, x))| *sum += w * x);
            }
            let behind = x[row.len() - rest.len()..].iter().zip(rest);
            let sum = sums.iter().sum::<f32>() + behind.map(|(x, w)| x * w).sum::<f32>() + bias;
            self.activation.of(sum)
        });
        products.collect()
    }
}

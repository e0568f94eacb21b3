//! Linear layers: one concept, with a lowering for each target.

use checkpoint::architecture::{self, Parameter};

use super::builder::{ElementType, TensorType, Value};
use super::graph::{Layout, Source, WeightSpec};
use super::{Emitter, Format, Target};

/// A weight matrix of the graph.
pub(super) struct Matrix {
    /// As [`WeightSpec::ty`] has it.
    pub weights: Value,
    /// As [`WeightSpec::scales`] has them, where they have a tensor of their own.
    pub scales: Option<Value>,
    /// How it is stored, and what meets it.
    pub format: Format,
    pub columns: usize,
}

/// One projection `y = x Wᵀ (+ b)`, as the checkpoint names it.
#[derive(Debug, Clone)]
pub(super) struct Linear {
    weight: String,
    /// Its outputs.
    pub rows: usize,
    bias: Option<String>,
}

impl Linear {
    pub fn new(weight: &Parameter, bias: Option<&Parameter>) -> Self {
        let name = |parameter: &Parameter| parameter.name.clone();
        Self { weight: name(weight), rows: weight.shape[0], bias: bias.map(name) }
    }

    pub fn weight(&self) -> String {
        self.weight.clone()
    }
}

impl From<&architecture::Linear> for Linear {
    fn from(linear: &architecture::Linear) -> Self {
        Self::new(&linear.weight, linear.bias.as_ref())
    }
}

impl Emitter<'_> {
    /// Applies projections that read the same `x`, `[rows, columns]`, in one pass over it; returns
    /// their outputs side by side, `[rows, sum of linear.rows]`.
    pub(super) fn linears(&mut self, x: &Value, group: &[Linear]) -> Value {
        let columns = x.dims()[1];
        let y = match self.target {
            Target::Portable { .. } => {
                let outputs: Vec<_> = group
                    .iter()
                    .map(|linear| {
                        let part = (linear.weight(), linear.rows);
                        let weight = self.matrix(&[part], columns);
                        let x = self.rounded(x, weight.format);
                        let weight = self.b.convert(&weight.weights, ElementType::F32);
                        self.b.dot(&x, &weight, [&[], &[]], [&[1], &[1]])
                    })
                    .collect();
                self.b.concat(&outputs, 1)
            }
            Target::Cuda(tiles) => self.joined_rows(x, None, group, tiles),
        };
        self.biased(y, group)
    }

    /// [`linears`](Self::linears) of `x`, RMS-normed with the weight `norm`.
    pub(super) fn normed_linears(&mut self, x: &Value, norm: &Value, group: &[Linear]) -> Value {
        match self.target {
            Target::Cuda(tiles) => {
                let y = self.joined_rows(x, Some(norm), group, tiles);
                self.biased(y, group)
            }
            _ => {
                let x = self.rms_norm(x, norm);
                self.linears(&x, group)
            }
        }
    }

    /// Two projections of as many outputs of `x`, RMS-normed with the weight `norm`, each by
    /// itself.
    pub(super) fn normed_pair(&mut self, x: &Value, norm: &Value, pair: [Linear; 2]) -> [Value; 2] {
        match self.target {
            Target::Cuda(tiles) => self.row_pair(x, norm, &pair, tiles),
            _ => {
                let outputs = pair[0].rows;
                let both = self.normed_linears(x, norm, &pair);
                [0, outputs].map(|low| self.b.slice(&both, 1, low, low + outputs))
            }
        }
    }

    /// `y`, the outputs of `group` side by side, with their biases.
    pub(super) fn biased(&mut self, y: Value, group: &[Linear]) -> Value {
        let &[rows, width] = y.dims() else { unreachable!("rows of outputs") };
        if group.iter().all(|linear| linear.bias.is_none()) {
            return y;
        }
        let biases: Vec<_> = group
            .iter()
            .map(|linear| match &linear.bias {
                Some(bias) => self.vector(bias, linear.rows),
                None => self.b.splat_f32(0.0, &[linear.rows]),
            })
            .collect();
        let bias = match &biases[..] {
            [bias] => bias.clone(),
            biases => self.joined(biases, 0),
        };
        let bias = self.b.broadcast(&bias, &[rows, width], &[1]);
        self.b.add(&y, &bias)
    }

    /// One projection; see [`linears`](Self::linears).
    pub(super) fn linear(&mut self, x: &Value, linear: Linear) -> Value {
        self.linears(x, &[linear])
    }

    /// `x`, rounded if weights of `format` want it.
    pub(super) fn rounded(&mut self, x: &Value, format: Format) -> Value {
        if format == Format::Bf16Rounded { self.b.reduce_precision(x, 8, 7) } else { x.clone() }
    }

    /// A weight matrix joined from `parts`, each `[rows, columns]`.
    pub(super) fn matrix(&mut self, parts: &[(String, usize)], columns: usize) -> Matrix {
        let format = match self.formats.of(parts.iter().map(|(name, _)| name.as_str())) {
            // Six bits lie in words of several lanes; row by row eight take their place.
            Format::Int6 => Format::Int8,
            format => format,
        };
        let parts = parts.to_vec();
        let spec = WeightSpec { parts, columns, format: format.stored(), layout: Layout::Rows };
        let mut number = 0;
        let mut beside = |ty: TensorType| {
            number += 1;
            self.argument(Source::Beside(spec.clone(), number), &ty.dims, ty.element)
        };
        let scales = spec.scales().map(&mut beside);
        Matrix { weights: self.weight(spec), scales, format, columns }
    }

    /// A weight vector, widened to f32 on upload: norms and biases are small.
    pub(super) fn vector(&mut self, name: &str, rows: usize) -> Value {
        self.weight(WeightSpec {
            parts: vec![(name.into(), rows)],
            columns: 0,
            format: Format::F32,
            layout: Layout::Rows,
        })
    }
}

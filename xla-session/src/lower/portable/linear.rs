//! Linear layers.

use checkpoint::architecture::{Linear, Parameter};

use super::Emitter;
use crate::emit::builder::{ElementType, Value};
use crate::emit::{Format, Layout, WeightSpec};

/// A weight matrix of the graph.
pub(super) struct Matrix {
    /// `[rows, columns]`.
    pub weights: Value,
    /// How it is stored, and what meets it.
    pub format: Format,
}

impl Emitter<'_> {
    /// Projections of `x`, `[rows, columns]`; their outputs side by side.
    pub(super) fn linears(&mut self, x: &Value, group: &[Linear]) -> Value {
        let outputs: Vec<_> = group.iter().map(|linear| self.linear(x, linear)).collect();
        match &outputs[..] {
            [one] => one.clone(),
            several => self.b.concat(several, 1),
        }
    }

    /// One projection.
    pub(super) fn linear(&mut self, x: &Value, linear: &Linear) -> Value {
        let y = self.product(x, &[&linear.weight]);
        match &linear.bias {
            Some(bias) => self.plus(&y, bias),
            None => y,
        }
    }

    /// Rows with this bias.
    pub(super) fn plus(&mut self, y: &Value, bias: &Parameter) -> Value {
        let bias = self.vector(bias);
        let bias = self.b.broadcast(&bias, y.dims(), &[1]);
        self.b.add(y, &bias)
    }

    /// `x` times a weight that joins `parts`.
    pub(super) fn product(&mut self, x: &Value, parts: &[&Parameter]) -> Value {
        let Matrix { weights, format } = self.matrix(parts);
        let x = self.rounded(x, format);
        let weights = self.b.convert(&weights, ElementType::F32);
        self.b.dot(&x, &weights, [&[], &[]], [&[1], &[1]])
    }

    /// `x`, as it meets weights of `format`.
    pub(super) fn rounded(&mut self, x: &Value, format: Format) -> Value {
        match format {
            Format::Bf16Rounded => self.b.reduce_precision(x, 8, 7),
            _ => x.clone(),
        }
    }

    /// A weight matrix that joins `parts`, which have as many columns. Blocks of integers are widened on
    /// upload: plain StableHLO has no such weights.
    pub(super) fn matrix(&mut self, parts: &[&Parameter]) -> Matrix {
        let format = match self.formats.of(parts.iter().map(|part| part.name.as_str())) {
            blocks if blocks.is_quantised() => Format::F32,
            floats => floats,
        };
        let columns = parts[0].shape[1];
        let parts = parts.iter().map(|part| (part.name.clone(), part.shape[0])).collect();
        let spec = WeightSpec { parts, columns, format: format.stored(), layout: Layout::Rows };
        Matrix { weights: self.weight(spec), format }
    }

    /// A weight vector, widened to f32 on upload: norms and biases are small.
    pub(super) fn vector(&mut self, parameter: &Parameter) -> Value {
        self.vectors(&[parameter])
    }

    /// Such vectors, one behind the other.
    pub(super) fn vectors(&mut self, parts: &[&Parameter]) -> Value {
        self.weight(WeightSpec {
            parts: parts.iter().map(|part| (part.name.clone(), part.rows())).collect(),
            columns: 0,
            format: Format::F32,
            layout: Layout::Rows,
        })
    }
}

//! Linear layers, with row-major weights: `[rows, columns]`, or `[rows, groups, 32]` where they are
//! quantised.

use super::function::Function;
use crate::emit::builder::Value;
use crate::emit::{Format, Layout, WeightSpec, in_rows};
use checkpoint::architecture::{Linear, Norm, Parameter, Role};

/// A weight matrix of the graph.
pub struct Matrix {
    /// As [`WeightSpec::ty`] has it.
    pub weights: Value,
    /// As [`WeightSpec::scales`] has them, where they have a tensor of their own.
    pub scales: Option<Value>,
    /// How it is stored, and what meets it.
    pub format: Format,
    /// Columns that hold weights; groups may have more.
    pub columns: usize,
}

impl Function<'_> {
    /// One projection of `x`, `[rows, columns]`.
    pub fn linear(&mut self, x: &Value, linear: &Linear) -> Value {
        let matrix = self.matrix(&[&linear.weight]);
        let y = self.parts.products(self, x, None, &[matrix]).remove(0);
        self.biased(y, &[linear])
    }

    /// Projections of `x`, normed with `norm` if there is one, by weights that are joined to one matrix; their
    /// outputs side by side, without biases.
    pub fn normed_product(
        &mut self,
        x: &Value,
        norm: Option<&Norm>,
        weights: &[&Parameter],
    ) -> Value {
        let matrix = self.matrix(weights);
        self.parts.products(self, x, norm, &[matrix]).remove(0)
    }

    /// Two projections of as many outputs of `x`, normed with `norm` if there is one, each by itself; of one row
    /// in one dispatch, where both matrices have one format.
    pub fn normed_pair(
        &mut self,
        x: &Value,
        norm: Option<&Norm>,
        pair: [&Linear; 2],
    ) -> [Value; 2] {
        let [first, second] = pair.map(|linear| self.matrix(&[&linear.weight]));
        let products = if self.rows == 1 && first.format != second.format {
            let one = |matrix| self.parts.products(self, x, norm, &[matrix]).remove(0);
            [first, second].map(one)
        } else {
            let [first, second] = &self.parts.products(self, x, norm, &[first, second])[..] else {
                unreachable!("as many as matrices")
            };
            [first.clone(), second.clone()]
        };
        let [first, second] = products;
        let [first, second] = [self.biased(first, &pair[..1]), self.biased(second, &pair[1..])];
        // Of several rows they are two dispatches.
        let first = if self.rows == 1 { first } else { self.kept(first) };
        [first, second]
    }

    /// `y`, the outputs of `group` side by side, with their biases.
    pub fn biased(&mut self, y: Value, group: &[&Linear]) -> Value {
        let &[rows, width] = y.dims() else { unreachable!("rows of outputs") };
        if group.iter().all(|linear| linear.bias.is_none()) {
            return y;
        }
        let mut bias = |linear: &&Linear| match &linear.bias {
            Some(bias) => self.vector(bias),
            None => self.b.splat_f32(0.0, &[linear.weight.shape[0]]),
        };
        let biases: Vec<_> = group.iter().map(&mut bias).collect();
        let bias = match &biases[..] {
            [bias] => bias.clone(),
            biases => self.joined(biases, 0),
        };
        let bias = self.b.broadcast(&bias, &[rows, width], &[1]);
        self.b.add(&y, &bias)
    }

    /// Rows with this bias.
    pub fn plus(&mut self, y: &Value, bias: &Parameter) -> Value {
        let bias = self.vector(bias);
        let bias = self.b.broadcast(&bias, y.dims(), &[1]);
        self.b.add(y, &bias)
    }

    /// A weight matrix joined from `parts`, which have as many columns.
    pub fn matrix(&mut self, parts: &[&Parameter]) -> Matrix {
        let format = match in_rows(self.formats.of(parts.iter().map(|part| part.name.as_str()))) {
            // Nibbles are not gathered.
            Format::Int4 if parts[0].role == Role::Embedding => Format::F32,
            format => format,
        };
        let columns = parts[0].shape[1];
        let parts = parts.iter().map(|part| (part.name.clone(), part.shape[0])).collect();
        let spec = WeightSpec { parts, columns, format: format.stored(), layout: Layout::Rows };
        let weights = self.weight(&spec, 0);
        let scales = spec.scales().map(|_| self.weight(&spec, 1));
        Matrix { weights, scales, format, columns }
    }

    /// A weight vector, widened to f32 on upload: norms and biases are small.
    pub fn vector(&mut self, parameter: &Parameter) -> Value {
        self.vectors(std::slice::from_ref(parameter))
    }

    /// Such vectors, one behind the other.
    pub fn vectors(&mut self, parts: &[Parameter]) -> Value {
        let parts = parts.iter().map(|part| (part.name.clone(), part.rows())).collect();
        let spec = WeightSpec { parts, columns: 0, format: Format::F32, layout: Layout::Rows };
        self.weight(&spec, 0)
    }
}

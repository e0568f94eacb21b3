//! Linear layers, with row-major weights: `[rows, columns]`, or `[rows, groups, 32]` where they are
//! quantised.

use checkpoint::architecture::{Linear, Norm, Parameter, Role};
use kernels::GROUP;

use super::function::Function;
use super::product::Columns;
use super::tiles::FEW;
use crate::emit::builder::{ElementType, Generic, Value, literal};
use crate::emit::{Format, Layout, WeightSpec, in_rows};

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

impl Function<'_> {
    /// One projection of `x`, `[rows, columns]`.
    pub fn linear(&mut self, x: &Value, linear: &Linear) -> Value {
        let matrix = self.matrix(&[&linear.weight]);
        let y = self.products(x, None, &[matrix]).remove(0);
        self.biased(y, &[linear])
    }

    /// Projections of `x`, RMS-normed with `norm` if there is one, by weights that are joined to one matrix; their
    /// outputs side by side, without biases.
    pub fn normed_product(
        &mut self,
        x: &Value,
        norm: Option<&Norm>,
        weights: &[&Parameter],
    ) -> Value {
        let matrix = self.matrix(weights);
        self.products(x, norm, &[matrix]).remove(0)
    }

    /// Two projections of as many outputs of `x`, RMS-normed with `norm` if there is one, each by itself; of one row
    /// in one dispatch, where both matrices have one format.
    pub fn normed_pair(
        &mut self,
        x: &Value,
        norm: Option<&Norm>,
        pair: [&Linear; 2],
    ) -> [Value; 2] {
        let [first, second] = pair.map(|linear| self.matrix(&[&linear.weight]));
        let products = if self.rows == 1 && first.format != second.format {
            let one = |matrix| self.products(x, norm, &[matrix]).remove(0);
            [first, second].map(one)
        } else {
            let [first, second] = &self.products(x, norm, &[first, second])[..] else {
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
        let parts = vec![(parameter.name.clone(), parameter.shape[0])];
        let spec = WeightSpec { parts, columns: 0, format: Format::F32, layout: Layout::Rows };
        self.weight(&spec, 0)
    }

    /// `x` `[rows, columns]`, RMS-normed with `norm` if there is one, times each of `matrices`, which
    /// have as many rows as each other; `[rows, matrix rows]` each.
    fn products(&mut self, x: &Value, norm: Option<&Norm>, matrices: &[Matrix]) -> Vec<Value> {
        if self.rows == 1 {
            return self.one_row(x, norm, matrices);
        }
        let x = match norm {
            Some(norm) => {
                let x = self.norm(x, norm);
                self.kept(x)
            }
            None => x.clone(),
        };
        let few = self.rows <= FEW;
        let each =
            |matrix| if few { self.few_rows(&x, matrix) } else { self.many_rows(&x, matrix) };
        matrices.iter().map(each).collect()
    }

    /// All products in one loop nest, each sum beside the others, and that of the squares of `x`
    /// too: the norm's factor is applied to the results.
    fn one_row(&mut self, x: &Value, norm: Option<&Norm>, matrices: &[Matrix]) -> Vec<Value> {
        let columns = x.dims()[1];
        let first = &matrices[0];
        let outputs = first.weights.dims()[0];
        let shape = Columns::of(first);
        let mut inputs = vec![(self.columns(x, shape), shape.activations)];
        let mut body = String::new();
        let activation = match norm {
            Some(norm) => {
                let weight = self.vector(&norm.weight);
                inputs.push((self.columns(&weight, shape), shape.activations));
                body += &match norm.offset {
                    0.0 => "%normed = arith.mulf %in0, %in1 : f32\n".to_owned(),
                    offset => format!(
                        "%offset = arith.constant {} : f32
                         %scale = arith.addf %offset, %in1 : f32
                         %normed = arith.mulf %in0, %scale : f32\n",
                        literal(offset)
                    ),
                };
                "%normed"
            }
            None => "%in0",
        };
        let sums = matrices.len() + usize::from(norm.is_some());
        let accumulator = |i: usize| match sums {
            1 => "%acc".to_owned(),
            _ => format!("%acc{i}"),
        };
        for (i, matrix) in matrices.iter().enumerate() {
            let operands = self.operands(matrix, shape, &mut inputs, &mut body, i);
            body += &format!(
                "%product{i} = arith.mulf {operands}, {activation} : f32
                 %sum{i} = arith.addf {}, %product{i} : f32\n",
                accumulator(i)
            );
        }
        if norm.is_some() {
            let i = matrices.len();
            body += &format!(
                "%square = arith.mulf %in0, %in0 : f32
                 %sum{i} = arith.addf {}, %square : f32\n",
                accumulator(i)
            );
        }
        let yielded: Vec<_> = (0..sums).map(|i| format!("%sum{i}")).collect();
        body += &format!("linalg.yield {} : {}", yielded.join(", "), vec!["f32"; sums].join(", "));
        let zero = self.b.fill("0.0", &[outputs], None);
        let inputs: Vec<_> = inputs.iter().map(|(value, map)| (value, *map)).collect();
        let mut results = self.b.generics(
            &Generic {
                loops: &format!("n,{}", shape.activations),
                inputs: &inputs,
                result: "n",
                body: &body,
                config: self.tiles.product(first.format, 1, columns, sums),
            },
            &vec![&zero; sums],
        );
        if let Some(norm) = norm
            && let Some(squares) = results.pop()
        {
            let width = self.b.splat_f32(columns as f32, &[outputs]);
            let mean = self.b.div(&squares, &width);
            let eps = self.b.splat_f32(norm.epsilon as f32, &[outputs]);
            let mean = self.b.add(&mean, &eps);
            let factor = self.b.unary("rsqrt", &mean);
            results = results.iter().map(|y| self.b.mul(y, &factor)).collect();
        }
        results.iter().map(|y| self.b.reshape(y, &[1, outputs])).collect()
    }

    /// One pass over the weights for all rows.
    fn few_rows(&mut self, x: &Value, matrix: &Matrix) -> Value {
        let (rows, columns) = (x.dims()[0], x.dims()[1]);
        let x = self.grouped_rows(x, Columns::of(matrix));
        self.rows_product(x, matrix, self.tiles.product(matrix.format, rows, columns, 1))
    }

    /// A matrix product, for which the compiler has tiles of its own: of bf16 with bf16 those of
    /// the tensor cores.
    fn many_rows(&mut self, x: &Value, matrix: &Matrix) -> Value {
        if matrix.scales.is_some() {
            return self.many_rows_in_groups(x, matrix);
        }
        let (x, weights) = match matrix.format {
            Format::Bf16Rounded => (self.b.convert(x, ElementType::Bf16), matrix.weights.clone()),
            _ => (x.clone(), self.b.convert(&matrix.weights, ElementType::F32)),
        };
        self.b.dot(&x, &weights, [&[], &[]], [&[1], &[1]])
    }

    /// The same over groups of columns: where weights are widened in the shape in which they are
    /// multiplied, the compiler does so in the dispatch of the product.
    fn many_rows_in_groups(&mut self, x: &Value, matrix: &Matrix) -> Value {
        let shape = Columns::of(matrix);
        let x = self.grouped_rows(x, shape);
        let (rows, outputs) = (x.dims()[0], matrix.weights.dims()[0]);
        let mut inputs = Vec::new();
        let mut body = String::new();
        let weight = self.operands(matrix, shape, &mut inputs, &mut body, 0);
        body += &format!("linalg.yield {weight} : f32");
        let inputs: Vec<_> = inputs.iter().map(|(value, map)| (value, *map)).collect();
        let dims = inputs[0].0.dims().to_vec();
        let into = self.b.empty(&dims, None);
        let wide = self.b.generic(
            &Generic {
                loops: shape.weights,
                inputs: &inputs,
                result: shape.weights,
                body: &body,
                config: None,
            },
            &into,
        );
        let zero = self.b.fill("0.0", &[rows, outputs], None);
        self.b.generic(
            &Generic {
                loops: "m,n,G,k",
                inputs: &[(&x, "m,G,k"), (&wide, "n,G,k")],
                result: "m,n",
                body: "%product = arith.mulf %in0, %in1 : f32
                     %sum = arith.addf %acc, %product : f32
                     linalg.yield %sum : f32",
                config: self.tiles.grouped_product(rows, outputs),
            },
            &zero,
        )
    }

    /// A vector of columns, or one row of them, as loops over `shape` read it.
    fn columns(&mut self, x: &Value, shape: Columns) -> Value {
        let columns = x.dims().iter().product();
        let x = self.b.reshape(x, &[columns]);
        if !shape.grouped {
            return x;
        }
        let groups = columns.div_ceil(GROUP);
        let x = self.b.pad_last(&x, groups * GROUP - columns);
        self.b.reshape(&x, &[groups, GROUP])
    }
}

//! Products with row-major weights: `[rows, columns]`, or `[rows, groups, 32]` where they are quantised.

use checkpoint::architecture::Norm;
use kernels::GROUP;

use super::CudaTiles;
use super::product::Columns;
use super::tiles::FEW;
use crate::emit::Format;
use crate::emit::builder::{ElementType, Generic, Value, literal};
use crate::lower::paged::{Function, Matrix};

impl CudaTiles {
    /// `x` `[rows, columns]`, RMS-normed with `norm` if there is one, times each of `matrices`, which
    /// have as many rows as each other; `[rows, matrix rows]` each.
    pub(super) fn products_of(
        &self,
        f: &mut Function<'_>,
        x: &Value,
        norm: Option<&Norm>,
        matrices: &[Matrix],
    ) -> Vec<Value> {
        if f.rows == 1 {
            return self.one_row(f, x, norm, matrices);
        }
        let x = match norm {
            Some(norm) => {
                let x = f.norm(x, norm);
                f.kept(x)
            }
            None => x.clone(),
        };
        let few = f.rows <= FEW;
        let each =
            |matrix| if few { self.few_rows(f, &x, matrix) } else { self.many_rows(f, &x, matrix) };
        matrices.iter().map(each).collect()
    }

    /// All products in one loop nest, each sum beside the others, and that of the squares of `x`
    /// too: the norm's factor is applied to the results.
    fn one_row(
        &self,
        f: &mut Function<'_>,
        x: &Value,
        norm: Option<&Norm>,
        matrices: &[Matrix],
    ) -> Vec<Value> {
        let columns = x.dims()[1];
        let first = &matrices[0];
        let outputs = first.weights.dims()[0];
        let shape = Columns::of(first);
        let mut inputs = vec![(self.columns(f, x, shape), shape.activations)];
        let mut body = String::new();
        let activation = match norm {
            Some(norm) => {
                let weight = f.vector(&norm.weight);
                inputs.push((self.columns(f, &weight, shape), shape.activations));
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
            let operands = self.operands(f, matrix, shape, &mut inputs, &mut body, i);
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
        let zero = f.b.fill("0.0", &[outputs], None);
        let inputs: Vec<_> = inputs.iter().map(|(value, map)| (value, *map)).collect();
        let mut results = f.b.generics(
            &Generic {
                loops: &format!("n,{}", shape.activations),
                inputs: &inputs,
                result: "n",
                body: &body,
                config: self.product_tiles(first.format, 1, columns, sums),
            },
            &vec![&zero; sums],
        );
        if let Some(norm) = norm
            && let Some(squares) = results.pop()
        {
            let width = f.b.splat_f32(columns as f32, &[outputs]);
            let mean = f.b.div(&squares, &width);
            let eps = f.b.splat_f32(norm.epsilon as f32, &[outputs]);
            let mean = f.b.add(&mean, &eps);
            let factor = f.b.unary("rsqrt", &mean);
            results = results.iter().map(|y| f.b.mul(y, &factor)).collect();
        }
        results.iter().map(|y| f.b.reshape(y, &[1, outputs])).collect()
    }

    /// One pass over the weights for all rows.
    fn few_rows(&self, f: &mut Function<'_>, x: &Value, matrix: &Matrix) -> Value {
        let (rows, columns) = (x.dims()[0], x.dims()[1]);
        let x = self.grouped_rows(f, x, Columns::of(matrix));
        self.rows_product(f, x, matrix, self.product_tiles(matrix.format, rows, columns, 1))
    }

    /// A matrix product, for which the compiler has tiles of its own: of bf16 with bf16 those of
    /// the tensor cores.
    fn many_rows(&self, f: &mut Function<'_>, x: &Value, matrix: &Matrix) -> Value {
        if matrix.scales.is_some() {
            return self.many_rows_in_groups(f, x, matrix);
        }
        let (x, weights) = match matrix.format {
            Format::Bf16Rounded => (f.b.convert(x, ElementType::Bf16), matrix.weights.clone()),
            _ => (x.clone(), f.b.convert(&matrix.weights, ElementType::F32)),
        };
        f.b.dot(&x, &weights, [&[], &[]], [&[1], &[1]])
    }

    /// The same over groups of columns: where weights are widened in the shape in which they are
    /// multiplied, the compiler does so in the dispatch of the product.
    fn many_rows_in_groups(&self, f: &mut Function<'_>, x: &Value, matrix: &Matrix) -> Value {
        let shape = Columns::of(matrix);
        let x = self.grouped_rows(f, x, shape);
        let (rows, outputs) = (x.dims()[0], matrix.weights.dims()[0]);
        let mut inputs = Vec::new();
        let mut body = String::new();
        let weight = self.operands(f, matrix, shape, &mut inputs, &mut body, 0);
        body += &format!("linalg.yield {weight} : f32");
        let inputs: Vec<_> = inputs.iter().map(|(value, map)| (value, *map)).collect();
        let dims = inputs[0].0.dims().to_vec();
        let into = f.b.empty(&dims, None);
        let wide = f.b.generic(
            &Generic {
                loops: shape.weights,
                inputs: &inputs,
                result: shape.weights,
                body: &body,
                config: None,
            },
            &into,
        );
        let zero = f.b.fill("0.0", &[rows, outputs], None);
        f.b.generic(
            &Generic {
                loops: "m,n,G,k",
                inputs: &[(&x, "m,G,k"), (&wide, "n,G,k")],
                result: "m,n",
                body: "%product = arith.mulf %in0, %in1 : f32
                     %sum = arith.addf %acc, %product : f32
                     linalg.yield %sum : f32",
                config: self.grouped_product_tiles(rows, outputs),
            },
            &zero,
        )
    }

    /// A vector of columns, or one row of them, as loops over `shape` read it.
    fn columns(&self, f: &mut Function<'_>, x: &Value, shape: Columns) -> Value {
        let columns = x.dims().iter().product();
        let x = f.b.reshape(x, &[columns]);
        if !shape.grouped {
            return x;
        }
        let groups = columns.div_ceil(GROUP);
        let x = f.b.pad_last(&x, groups * GROUP - columns);
        f.b.reshape(&x, &[groups, GROUP])
    }
}

//! Products with row-major weights: `[rows, columns]`, or `[rows, groups, 32]` where they are quantised.

use checkpoint::architecture::Norm;
use kernels::GROUP;

use super::CudaTiles;
use super::product::Columns;
use super::tiles::Product;
use crate::emit::Format;
use crate::emit::builder::{Generic, Value, literal};
use crate::lower::paged::{Function, Matrix};

/// Rows of the step that rounds activations, where it may, for the tensor cores. Fewer rows were not tried
/// on them.
const ROUNDED: usize = 256;

impl CudaTiles {
    /// `x` `[rows, columns]`, normed with `norm` if there is one, times each of `matrices`, which
    /// have as many rows as each other; `[rows, matrix rows]` each.
    pub(super) fn products_of(
        &self,
        f: &mut Function<'_>,
        x: &Value,
        norm: Option<&Norm>,
        matrices: &[Matrix],
    ) -> Vec<Value> {
        let (x, norm) = self.normed_before(f, x, norm);
        if f.rows == 1 {
            return self.one_row(f, &x, norm, matrices);
        }
        matrices.iter().map(|matrix| self.several_rows(f, &x, matrix)).collect()
    }

    /// `x`, normed with `norm`, but where products apply it.
    pub(super) fn normed_before<'a>(
        &self,
        f: &mut Function<'_>,
        x: &Value,
        norm: Option<&'a Norm>,
    ) -> (Value, Option<&'a Norm>) {
        // The mean would have to be known before the products.
        let inside = |norm: &&Norm| f.rows == 1 && !norm.centred;
        match norm {
            Some(norm) if !inside(&norm) => {
                let x = f.norm(x, norm);
                (f.kept(x), None)
            }
            norm => (x.clone(), norm),
        }
    }

    /// All products in one loop nest, each sum beside the others, and that of the squares of `x`
    /// too: the norm's factor is applied to the results. `[matrices that are in one, outputs]` each.
    pub(super) fn one_row(
        &self,
        f: &mut Function<'_>,
        x: &Value,
        norm: Option<&Norm>,
        matrices: &[Matrix],
    ) -> Vec<Value> {
        let columns = x.dims()[1];
        let first = &matrices[0];
        let shape = Columns::of(first);
        let dims = &first.weights.dims()[..1 + usize::from(!shape.pairs.is_empty())];
        let outputs = dims[dims.len() - 1];
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
        let zero = f.b.fill("0.0", dims, None);
        let inputs: Vec<_> = inputs.iter().map(|(value, map)| (value, *map)).collect();
        let mut results = f.b.generics(
            &Generic {
                loops: &format!("{}n,{}", shape.pairs, shape.activations),
                inputs: &inputs,
                result: &format!("{}n", shape.pairs),
                body: &body,
                config: self.product_tiles(&Product {
                    format: first.format,
                    pairs: (dims.len() > 1).then(|| dims[0]),
                    rows: 1,
                    outputs,
                    columns,
                    sums,
                }),
            },
            &vec![&zero; sums],
        );
        if let Some(norm) = norm
            && let Some(squares) = results.pop()
        {
            let width = f.b.splat_f32(columns as f32, dims);
            let mean = f.b.div(&squares, &width);
            let eps = f.b.splat_f32(norm.epsilon as f32, dims);
            let mean = f.b.add(&mean, &eps);
            let factor = f.b.unary("rsqrt", &mean);
            results = results.iter().map(|y| f.b.mul(y, &factor)).collect();
        }
        let pairs = dims.iter().product::<usize>() / outputs;
        results.iter().map(|y| f.b.reshape(y, &[pairs, outputs])).collect()
    }

    /// The product of several rows.
    fn several_rows(&self, f: &mut Function<'_>, x: &Value, matrix: &Matrix) -> Value {
        let (rows, columns) = (x.dims()[0], x.dims()[1]);
        if matrix.format == Format::Bf16Rounded && rows >= ROUNDED {
            return self.bf16_product(f, x, matrix);
        }
        let (format, outputs) = (matrix.format, matrix.weights.dims()[0]);
        let tiles =
            self.product_tiles(&Product { format, pairs: None, rows, outputs, columns, sums: 1 });
        let x = self.grouped_rows(f, x, Columns::of(matrix));
        self.rows_product(f, x, matrix, tiles)
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

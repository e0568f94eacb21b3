//! Products with row-major weights, `[rows, columns]`, or `[rows, groups, 32]` where they are
//! quantised.

use kernels::GROUP;

use super::tiles::{CudaTiles, FEW};
use crate::emit::builder::{Generic, Value};
use crate::emit::linear::{Linear, Matrix};
use crate::emit::rows::Columns;
use crate::emit::{ElementType, Emitter, Format, multiply_add};

impl Emitter<'_> {
    /// `x` `[rows, columns]`, RMS-normed with the weight `norm` if there is one, times each of
    /// `matrices`, which have as many rows as each other; `[rows, matrix rows]` each.
    pub(in crate::emit) fn row_products(
        &mut self,
        x: &Value,
        norm: Option<&Value>,
        matrices: &[Matrix],
        tiles: &CudaTiles,
    ) -> Vec<Value> {
        match x.dims()[0] {
            1 => self.one_row(x, norm, matrices, tiles),
            rows => {
                let x = norm.map_or_else(|| x.clone(), |norm| self.rms_norm(x, norm));
                let each = |matrix| {
                    if rows <= FEW {
                        self.few_rows(&x, matrix, tiles)
                    } else {
                        self.many_rows(&x, matrix, tiles)
                    }
                };
                matrices.iter().map(each).collect()
            }
        }
    }

    /// Projections of `x`, RMS-normed with the weight `norm` if there is one, joined to one
    /// matrix; their outputs side by side, without biases.
    pub(in crate::emit) fn joined_rows(
        &mut self,
        x: &Value,
        norm: Option<&Value>,
        group: &[Linear],
        tiles: &CudaTiles,
    ) -> Value {
        let parts: Vec<_> = group.iter().map(|l| (l.weight(), l.rows)).collect();
        let matrix = self.matrix(&parts, x.dims()[1]);
        self.row_products(x, norm, &[matrix], tiles).remove(0)
    }

    /// [`normed_pair`](Self::normed_pair) in one dispatch, where both matrices have one format.
    pub(in crate::emit) fn row_pair(
        &mut self,
        x: &Value,
        norm: &Value,
        pair: &[Linear; 2],
        tiles: &CudaTiles,
    ) -> [Value; 2] {
        let columns = x.dims()[1];
        let matrices =
            pair.each_ref().map(|linear| self.matrix(&[(linear.weight(), linear.rows)], columns));
        let products = if matrices[0].format == matrices[1].format {
            self.row_products(x, Some(norm), &matrices, tiles)
        } else {
            let one = |matrix| self.row_products(x, Some(norm), &[matrix], tiles);
            matrices.into_iter().flat_map(one).collect()
        };
        [0, 1].map(|i| self.biased(products[i].clone(), &pair[i..=i]))
    }

    /// All products in one loop nest, each sum beside the others, and that of the squares of `x`
    /// too: the norm's factor is applied to the results.
    fn one_row(
        &mut self,
        x: &Value,
        norm: Option<&Value>,
        matrices: &[Matrix],
        tiles: &CudaTiles,
    ) -> Vec<Value> {
        let columns = x.dims()[1];
        let first = &matrices[0];
        let outputs = first.weights.dims()[0];
        let shape = Columns::of(first);
        let mut inputs = vec![(self.columns(x, shape), shape.activations)];
        let mut body = String::new();
        let activation = match norm {
            Some(norm) => {
                inputs.push((self.columns(norm, shape), shape.activations));
                body += "%normed = arith.mulf %in0, %in1 : f32\n";
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
                config: tiles.product(first.format, 1, columns, sums),
            },
            &vec![&zero; sums],
        );
        if norm.is_some()
            && let Some(squares) = results.pop()
        {
            let width = self.b.splat_f32(columns as f32, &[outputs]);
            let mean = self.b.div(&squares, &width);
            let eps = self.b.splat_f32(self.config.rms_norm_eps as f32, &[outputs]);
            let mean = self.b.add(&mean, &eps);
            let factor = self.b.unary("rsqrt", &mean);
            results = results.iter().map(|y| self.b.mul(y, &factor)).collect();
        }
        results.iter().map(|y| self.b.reshape(y, &[1, outputs])).collect()
    }

    /// One pass over the weights for all rows.
    fn few_rows(&mut self, x: &Value, matrix: &Matrix, tiles: &CudaTiles) -> Value {
        let (rows, columns) = (x.dims()[0], x.dims()[1]);
        let x = self.grouped_rows(x, Columns::of(matrix));
        self.rows_product(x, matrix, tiles.product(matrix.format, rows, columns, 1))
    }

    /// A matrix product, for which the compiler has tiles of its own: of bf16 with bf16 those of
    /// the tensor cores.
    fn many_rows(&mut self, x: &Value, matrix: &Matrix, tiles: &CudaTiles) -> Value {
        if matrix.scales.is_some() {
            return self.many_rows_in_groups(x, matrix, tiles);
        }
        let (x, weights) = match matrix.format {
            Format::Bf16Rounded => (self.b.convert(x, ElementType::Bf16), matrix.weights.clone()),
            _ => (x.clone(), self.b.convert(&matrix.weights, ElementType::F32)),
        };
        self.b.dot(&x, &weights, [&[], &[]], [&[1], &[1]])
    }

    /// The same over groups of columns: where weights are widened in the shape in which they are
    /// multiplied, the compiler does so in the dispatch of the product.
    fn many_rows_in_groups(&mut self, x: &Value, matrix: &Matrix, tiles: &CudaTiles) -> Value {
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
                body: multiply_add(ElementType::F32),
                config: tiles.grouped_product(rows, outputs),
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

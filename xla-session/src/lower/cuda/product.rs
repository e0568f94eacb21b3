//! Products with weights that lie row by row, `[rows, columns]` or `[rows, groups, 32]` where they are quantised,
//! as loop nests read them.

use kernels::GROUP;

use super::CudaTiles;
use crate::emit::Format;
use crate::emit::builder::{ElementType, Generic, Value};
use crate::lower::paged::{Function, Matrix};

impl CudaTiles {
    /// Rows of a row-major table at `indices`, widened, `[indices, columns]`. The caller
    /// keeps indices within the table: the compiler checks none.
    pub(super) fn gathered(&self, f: &mut Function<'_>, table: &Matrix, indices: &Value) -> Value {
        let n = indices.dims()[0];
        let Some(scales) = &table.scales else {
            let rows = f.b.gather_rows(&table.weights, indices);
            return f.b.convert(&rows, ElementType::F32);
        };
        debug_assert_eq!(table.format, Format::Int8, "the only quantised format that is gathered");
        let &[rows, groups, _] = table.weights.dims() else { unreachable!("groups have 3 dims") };
        let weights = f.b.reshape(&table.weights, &[rows, groups * GROUP]);
        let weights = f.b.gather_rows(&weights, indices);
        let weights = f.b.convert(&weights, ElementType::F32);
        let scales = f.b.gather_rows(&scales.clone(), indices);
        let scales = f.b.convert(&scales, ElementType::F32);
        let scales = f.b.broadcast(&scales, &[n, groups, GROUP], &[0, 1]);
        let scales = f.b.reshape(&scales, &[n, groups * GROUP]);
        let weights = f.b.mul(&weights, &scales);
        f.b.slice(&weights, 1, 0, table.columns)
    }

    /// `x` `[rows, columns]` as loops over `shape` read it.
    pub(super) fn grouped_rows(&self, f: &mut Function<'_>, x: &Value, shape: Columns) -> Value {
        if !shape.grouped {
            return x.clone();
        }
        let &[rows, columns] = x.dims() else { unreachable!("rows of columns") };
        let groups = columns.div_ceil(GROUP);
        let x = f.b.pad_last(x, groups * GROUP - columns);
        f.b.reshape(&x, &[rows, groups, GROUP])
    }

    /// Rows of activations, as [`grouped_rows`](Self::grouped_rows) has them, times `matrix`:
    /// `[rows, matrix rows]`. Where it is a matrix for each of some blocks of rows, `x` and the result are blocks too.
    pub(super) fn rows_product(
        &self,
        f: &mut Function<'_>,
        x: Value,
        matrix: &Matrix,
        config: Option<String>,
    ) -> Value {
        let shape = Columns::of(matrix);
        let Columns { pairs, activations: columns, .. } = shape;
        let at = usize::from(!pairs.is_empty());
        let mut dims = x.dims()[..=at].to_vec();
        dims.push(matrix.weights.dims()[at]);
        let wide = self.widened(f, matrix, shape);
        let zero = f.b.fill("0.0", &dims, None);
        f.b.generic(
            &Generic {
                loops: &format!("{pairs}m,n,{columns}"),
                inputs: &[(&x, &format!("{pairs}m,{columns}")), (&wide, shape.weights)],
                result: &format!("{pairs}m,n"),
                body: "%product = arith.mulf %in0, %in1 : f32
                     %sum = arith.addf %acc, %product : f32
                     linalg.yield %sum : f32",
                config,
            },
            &zero,
        )
    }

    /// `x`, `[rows, columns]`, rounded to bf16, times `matrix`, which is in bf16: on the tensor cores.
    pub(super) fn bf16_product(&self, f: &mut Function<'_>, x: &Value, matrix: &Matrix) -> Value {
        let x = f.b.convert(x, ElementType::Bf16);
        let &[outputs, columns] = matrix.weights.dims() else { unreachable!("rows of columns") };
        let rows = x.dims()[0];
        let Some(config) = self.bf16_product_tiles(rows, outputs, columns) else {
            return f.b.dot(&x, &matrix.weights, [&[], &[]], [&[1], &[1]]);
        };
        let zero = f.b.fill("0.0", &[rows, outputs], None);
        let product = f.b.generic(
            &Generic {
                loops: "m,n,k",
                inputs: &[(&x, "m,k"), (&matrix.weights, "n,k")],
                result: "m,n",
                body: "%activation = arith.extf %in0 : bf16 to f32
                     %weight = arith.extf %in1 : bf16 to f32
                     %product = arith.mulf %activation, %weight : f32
                     %sum = arith.addf %acc, %product : f32
                     linalg.yield %sum : f32",
                config: Some(config),
            },
            &zero,
        );
        // What follows, in the same dispatch, would have the compiler (3.13.0) keep 128 by 128 results in local memory.
        f.b.apart(&product)
    }

    /// The weights in f32, in the shape in which they are multiplied: the compiler widens them in the
    /// dispatch of the product. Inside the product's own loops, where one row widens them, it would not
    /// distribute several rows.
    fn widened(&self, f: &mut Function<'_>, matrix: &Matrix, shape: Columns) -> Value {
        let mut inputs = Vec::new();
        let mut body = String::new();
        let weight = self.operands(f, matrix, shape, &mut inputs, &mut body, 0);
        if body.is_empty() {
            return matrix.weights.clone();
        }
        body += &format!("linalg.yield {weight} : f32");
        let inputs: Vec<_> = inputs.iter().map(|(value, map)| (value, *map)).collect();
        let into = f.b.empty(inputs[0].0.dims(), None);
        let nest = Generic {
            loops: shape.weights,
            inputs: &inputs,
            result: shape.weights,
            body: &body,
            config: None,
        };
        f.b.generic(&nest, &into)
    }

    /// The weights as they are multiplied: int4 is stored as bytes, which no argument can say.
    pub(super) fn integers(&self, f: &mut Function<'_>, matrix: &Matrix) -> Value {
        let bytes = &matrix.weights;
        if matrix.format != Format::Int4 || bytes.ty.element == ElementType::I4 {
            return bytes.clone();
        }
        let &[rows, groups, _] = bytes.dims() else { unreachable!("groups have 3 dims") };
        let dims = [rows, groups, GROUP];
        let text = format!(
            "flow.tensor.bitcast {} : {} -> tensor<{rows}x{groups}x{GROUP}xi4>",
            bytes.name, bytes.ty
        );
        f.b.op(&dims, ElementType::I4, text)
    }

    /// Adds what the weights of `matrix` need to `inputs` and to `body`; returns the name of the
    /// weight as f32.
    pub(super) fn operands(
        &self,
        f: &mut Function<'_>,
        matrix: &Matrix,
        shape: Columns,
        inputs: &mut Vec<(Value, &str)>,
        body: &mut String,
        number: usize,
    ) -> String {
        let weights = self.integers(f, matrix);
        let (at, element) = (inputs.len(), weights.ty.element.as_str());
        inputs.push((weights, shape.weights));
        let widen = match matrix.format {
            Format::F32 => return format!("%in{at}"),
            Format::F16 | Format::Bf16 | Format::Bf16Rounded => "extf",
            _ => "sitofp",
        };
        *body += &format!("%wide{number} = arith.{widen} %in{at} : {element} to f32\n");
        let Some(scales) = &matrix.scales else { return format!("%wide{number}") };
        inputs.push((scales.clone(), shape.scales));
        // In this order: the compiler takes a product of weight and activation first for a
        // contraction, and loses the tiles.
        *body += &format!(
            "%scale{number} = arith.extf %in{} : f16 to f32
             %weight{number} = arith.mulf %wide{number}, %scale{number} : f32\n",
            at + 1
        );
        format!("%weight{number}")
    }
}

/// How loops walk along the columns of a matrix, or of one for each of several pairs of a row, or of a block of
/// rows, and an expert.
#[derive(Debug, Clone, Copy)]
pub(super) struct Columns {
    /// Whether in groups that share a scale.
    pub grouped: bool,
    /// The loop over matrices, with a comma, where there are several.
    pub pairs: &'static str,
    /// The loops of a row of activations.
    pub activations: &'static str,
    /// The loops of the weights.
    pub weights: &'static str,
    /// The loops of their scales.
    pub scales: &'static str,
}

impl Columns {
    /// Those of `matrix`.
    pub fn of(matrix: &Matrix) -> Self {
        let grouped = matrix.format.is_quantised();
        let several = matrix.weights.dims().len() > 2 + usize::from(grouped);
        let (pairs, scales) = if several { ("p,", "p,n,G") } else { ("", "n,G") };
        let (activations, weights) = match (grouped, several) {
            (false, false) => ("k", "n,k"),
            (false, true) => ("k", "p,n,k"),
            (true, false) => ("G,k", "n,G,k"),
            (true, true) => ("G,k", "p,n,G,k"),
        };
        Self { grouped, pairs, activations, weights, scales }
    }
}

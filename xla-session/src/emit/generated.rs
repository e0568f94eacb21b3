//! Matrix products that IREE generates: for devices that have none of this crate's kernels.

use super::builder::{Combine, Generic, Value};
use super::linear::Matrix;
use super::tiles::{CpuTiles, FEW};
use super::{Emitter, Format, int6, multiply_add};
use crate::quantise::{GROUP, LARGEST_ACTIVATION};

/// The end of a body: adds `in0` times the weight `wide`, which has the scale `in2`.
macro_rules! scaled_multiply_add {
    () => {
        "%scale = arith.extf %in2 : f16 to f32
         %weight = arith.mulf %wide, %scale : f32
         %product = arith.mulf %in0, %weight : f32
         %sum = arith.addf %acc, %product : f32
         linalg.yield %sum : f32"
    };
}

impl Emitter<'_> {
    /// See [`packed_product`](Self::packed_product).
    pub(super) fn generated_product(
        &mut self,
        x: &Value,
        matrix: &Matrix,
        tiles: &CpuTiles,
    ) -> Value {
        match &matrix.scales {
            Some(scales) => self.scaled_product(x, matrix, &scales.clone()),
            None => {
                let x = self.rounded(x, matrix.format);
                self.float_product(&x, &matrix.weights, tiles)
            }
        }
    }

    /// Weights `[blocks, columns, lanes]` of floats.
    fn float_product(&mut self, x: &Value, weight: &Value, tiles: &CpuTiles) -> Value {
        let (rows, columns) = (x.dims()[0], x.dims()[1]);
        let &[blocks, _, lanes] = weight.dims() else { unreachable!("packed weights have 3 dims") };
        let element = weight.ty.element;
        let body = multiply_add(element);
        let y = if rows == 1 {
            let x = self.b.reshape(x, &[columns]);
            let zero = self.b.fill("0.0", &[blocks, lanes], None);
            self.b.generic(
                &Generic {
                    loops: "n,b,k",
                    inputs: &[(&x, "k"), (weight, "n,k,b")],
                    result: "n,b",
                    body,
                    config: Some(tiles.one_row(blocks, columns, element)),
                },
                &zero,
            )
        } else if rows <= FEW {
            let zero = self.b.fill("0.0", &[rows, blocks, lanes], None);
            self.b.generic(
                &Generic {
                    loops: "m,n,b,k",
                    inputs: &[(x, "m,k"), (weight, "n,k,b")],
                    result: "m,n,b",
                    body,
                    config: Some(tiles.few_rows(rows, blocks, columns, element)),
                },
                &zero,
            )
        } else {
            // Activations interleaved like the weights: [rows / 8, columns, 8]. Without the
            // barriers the transpose folds back into the product, which then loses its tiles.
            let x = self.b.barrier(x);
            let x = self.b.reshape(&x, &[rows / FEW, FEW, columns]);
            let x = self.b.transpose(&x, &[0, 2, 1]);
            let x = self.b.barrier(&x);
            let mut y = self.b.fill("0.0", &[rows / FEW, FEW, blocks, lanes], None);
            let step = tiles.split_columns(element);
            for low in (0..columns).step_by(step) {
                let high = columns.min(low.saturating_add(step));
                let x = self.b.slice(&x, 1, low, high);
                let weight = self.b.slice(weight, 1, low, high);
                y = self.b.generic(
                    &Generic {
                        loops: "m,i,n,b,k",
                        inputs: &[(&x, "m,k,i"), (&weight, "n,k,b")],
                        result: "m,i,n,b",
                        body,
                        config: Some(tiles.many_rows(rows, blocks, high - low, element)),
                    },
                    &y,
                );
            }
            y
        };
        self.b.reshape(&y, &[rows, blocks * lanes])
    }

    /// Quantised weights with their scales. Right, not fast: a loop over the groups' columns.
    fn scaled_product(&mut self, x: &Value, matrix: &Matrix, scales: &Value) -> Value {
        let (rows, columns) = (x.dims()[0], matrix.columns);
        let &[blocks, groups, lanes] = scales.dims() else { unreachable!("scales have 3 dims") };
        let x = self.b.pad_last(x, groups * GROUP - columns);
        let x = self.b.reshape(&x, &[rows, groups, GROUP]);
        let x = self.rounded_to_16_bits(&x);
        let zero = self.b.fill("0.0", &[rows, blocks, lanes], None);
        let y = if matrix.format == Format::Int8 {
            let weights = self.b.reshape(&matrix.weights, &[blocks, groups, GROUP, lanes]);
            self.b.generic(
                &Generic {
                    loops: "m,n,b,g,k",
                    inputs: &[(&x, "m,g,k"), (&weights, "n,g,k,b"), (scales, "n,g,b")],
                    result: "m,n,b",
                    body: concat!(
                        "%wide = arith.sitofp %in1 : i8 to f32\n",
                        scaled_multiply_add!()
                    ),
                    config: None,
                },
                &zero,
            )
        } else if matrix.format == Format::Int6 {
            let (most, [low, high]) = self.split_int6(&matrix.weights);
            let x_of = |emitter: &mut Self, low, high, dims: &[usize]| {
                let x = emitter.b.slice(&x, 2, low, high);
                emitter.b.reshape(&x, &[&[rows, groups], dims].concat())
            };
            let x_most = x_of(self, 0, 24, &[6, 2, 2]);
            let x_rest = x_of(self, 24, GROUP, &[2, 2, 2]);
            let body = int6::integer_of_most("%in1", 5) + scaled_multiply_add!();
            let y = self.b.generic(
                &Generic {
                    loops: "m,n,b,g,w,p,h",
                    inputs: &[(&x_most, "m,g,w,p,h"), (&most, "n,g,w,b"), (scales, "n,g,b")],
                    result: "m,n,b",
                    body: &body,
                    config: None,
                },
                &zero,
            );
            let body = int6::integer_of_rest("%in1", "%in3", 5) + scaled_multiply_add!();
            self.b.generic(
                &Generic {
                    loops: "m,n,b,g,w,p,h",
                    inputs: &[
                        (&x_rest, "m,g,w,p,h"),
                        (&low, "n,g,w,p,b"),
                        (scales, "n,g,b"),
                        (&high, "n,g,w,b"),
                    ],
                    result: "m,n,b",
                    body: &body,
                    config: None,
                },
                &y,
            )
        } else {
            let x = self.b.reshape(&x, &[rows, groups, GROUP / 8, 8]);
            self.b.generic(
                &Generic {
                    loops: "m,n,b,g,j,i",
                    inputs: &[(&x, "m,g,j,i"), (&matrix.weights, "n,g,j,b"), (scales, "n,g,b")],
                    result: "m,n,b",
                    body: concat!(
                        "%i = linalg.index 5 : index
                         %i32 = arith.index_cast %i : index to i32
                         %four = arith.constant 4 : i32
                         %shift = arith.muli %i32, %four : i32
                         %shifted = arith.shrui %in1, %shift : i32
                         %fifteen = arith.constant 15 : i32
                         %nibble = arith.andi %shifted, %fifteen : i32
                         %eight = arith.constant 8 : i32
                         %integer = arith.subi %nibble, %eight : i32
                         %wide = arith.sitofp %integer : i32 to f32\n",
                        scaled_multiply_add!()
                    ),
                    config: None,
                },
                &zero,
            )
        };
        self.b.reshape(&y, &[rows, blocks * lanes])
    }

    /// Groups of activations, `[rows, groups, 32]`, as the kernels round them: to multiples of a
    /// 32639th of the largest of the group.
    fn rounded_to_16_bits(&mut self, x: &Value) -> Value {
        let dims = x.dims().to_vec();
        let b = &mut self.b;
        let magnitude = b.unary("abs", x);
        let largest = b.reduce(&magnitude, &[2], Combine::Max);
        let least = b.splat_f32(1e-30, &dims[..2]);
        let nothing = b.compare("LT", &largest, &least);
        let zero = b.splat_f32(0.0, &dims[..2]);
        let steps = b.splat_f32(LARGEST_ACTIVATION, &dims[..2]);
        let inverse = b.div(&steps, &largest);
        let inverse = b.select(&nothing, &zero, &inverse);
        let scale = b.div(&largest, &steps);
        let inverse = b.broadcast(&inverse, &dims, &[0, 1]);
        let scale = b.broadcast(&scale, &dims, &[0, 1]);
        let scaled = b.mul(x, &inverse);
        let integers = b.unary("round_nearest_even", &scaled);
        b.mul(&integers, &scale)
    }
}

//! Matrix products that IREE generates: for devices that have none of our kernels.

use kernels::LARGEST_ACTIVATION;

use super::builder::{Combine, Generic, Value};
use super::linear::Matrix;
use super::rows::Columns;
use super::tiles::{CpuTiles, FEW};
use super::{Emitter, multiply_add};

impl Emitter<'_> {
    /// See [`cpu_product`](Self::cpu_product).
    pub(super) fn generated_product(
        &mut self,
        x: &Value,
        matrix: &Matrix,
        tiles: &CpuTiles,
    ) -> Value {
        match &matrix.scales {
            Some(_) => self.scaled_product(x, matrix),
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

    /// Quantised weights in rows, with their scales. Right, not fast: a loop over the groups'
    /// columns.
    fn scaled_product(&mut self, x: &Value, matrix: &Matrix) -> Value {
        let x = self.grouped_rows(x, Columns::of(matrix));
        let x = self.rounded_to_16_bits(&x);
        self.rows_product(x, matrix, None)
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

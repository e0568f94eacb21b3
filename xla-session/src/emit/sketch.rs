//! A product with floats of which only the largest result is wanted: the output projection of greedy
//! decoding.
//!
//! All results are computed with a sketch of the weights first. What that can lack is known for each
//! row, so that most cannot have the largest result: their weights are not read.

use kernels::LANES;
use kernels::quantise::SKETCH;

use super::builder::{Kernel, Value};
use super::graph::{Layout, Source, WeightSpec};
use super::linear::Matrix;
use super::{ElementType, Emitter, Target};

impl Emitter<'_> {
    /// `x` `[1, columns]` times `matrix`, of which `spec` is a sketch; results that cannot be the
    /// largest are `-inf`, unless the call wants all. As [`cpu_product`](Self::cpu_product) has them.
    pub(super) fn sketched_product(
        &mut self,
        x: &Value,
        matrix: &Matrix,
        spec: &WeightSpec,
    ) -> Value {
        let Target::Cpu(tiles) = self.target else { unreachable!("a CPU's layout") };
        let all = self.argument(Source::AllLogits, &[], ElementType::I32);
        let all = self.b.index_cast(&all.name);
        let errors = spec.errors().expect("a sketch has them");
        let errors = self.argument(Source::Beside(spec.clone(), 1), &errors.dims, errors.element);
        let sketch = Matrix {
            weights: self.weight(spec.clone()),
            scales: None,
            offsets: None,
            format: SKETCH,
            ..*matrix
        };
        let rounded = self.rounded(x, matrix.format);
        let used = self.b.index_is_zero(&all);
        let sketched =
            self.called_product(&sketch.symbol("product"), &rounded, used, &sketch, tiles);
        let blocks = matrix.rows.div_ceil(LANES);
        let results = blocks * LANES;
        let best = self.largest(&sketched, matrix.rows);

        // Of the same activations, if they are rounded: a compiler may compute them twice.
        let x = self.operand(&rounded, matrix.format);
        let mut inputs = vec![&matrix.weights];
        inputs.extend(&matrix.offsets);
        inputs.extend([&x, &sketched, &errors, &best]);
        let run = tiles.run(blocks);
        self.b.kernel(
            &Kernel {
                symbol: &matrix.symbol("candidates"),
                inputs: &inputs,
                scalars: &[run.into(), matrix.rows.into(), matrix.columns.into(), all],
                work_items: blocks.div_ceil(run),
            },
            &[1, results],
        )
    }

    /// The sketch that is beside the matrix of `parts`, in blocks of its own; none where it would
    /// cost more than it gains, or there are no kernels to read it.
    pub(super) fn sketch_of(
        &self,
        parts: &[(String, usize)],
        matrix: &Matrix,
    ) -> Option<WeightSpec> {
        let Target::Cpu(tiles) = self.target else { return None };
        let sketched = tiles.sketches(matrix.format, matrix.rows * matrix.columns);
        sketched.then(|| WeightSpec {
            parts: parts.to_vec(),
            columns: matrix.columns,
            format: matrix.format.stored(),
            layout: Layout::Sketch { lanes: LANES },
        })
    }

    /// The index of the largest of the first `valid` of `products`, `[1, results]`.
    fn largest(&mut self, products: &Value, valid: usize) -> Value {
        let row = self.b.reshape(products, &products.dims()[1..]);
        self.argmax(&row, valid)
    }
}

//! A product of which only the largest result is wanted: the output projection of greedy decoding.
//!
//! All results are computed coarsely first. With the exact one where the coarse is largest, and a
//! bound of what the fine part can add to each, most rows cannot win any more: nothing else is read
//! of them.

use kernels::LANES;

use super::builder::{Kernel, Value};
use super::graph::Source;
use super::linear::Matrix;
use super::{ElementType, Emitter, Target};

impl Emitter<'_> {
    /// `x` `[1, columns]` times a split matrix, `fine` being its fine part and the norms of that;
    /// results that cannot be the largest are `-inf`, unless the call wants all. As
    /// [`cpu_product`](Self::cpu_product) has them.
    pub(super) fn split_product(
        &mut self,
        x: &Value,
        matrix: &Matrix,
        [fine, norms]: &[Value; 2],
    ) -> Value {
        let Target::Cpu(tiles) = self.target else { unreachable!("a CPU's layout") };
        let symbol = |what: &str| format!("{what}_{}", matrix.format.as_str());
        let coarse = self.called_product(&symbol("coarse"), x, 1.into(), matrix, tiles);
        let blocks = matrix.rows.div_ceil(LANES);
        let results = blocks * LANES;
        let best = self.largest(&coarse, matrix.rows);
        let all = self.argument(Source::AllLogits, &[], ElementType::I32);
        let all = self.b.index_cast(&all.name);
        let run = tiles.run(blocks);
        self.b.kernel(
            &Kernel {
                symbol: &symbol("refine"),
                inputs: &[fine, norms, &coarse, x, &best],
                scalars: &[run.into(), matrix.rows.into(), matrix.columns.into(), all],
                work_items: blocks.div_ceil(run),
            },
            &[1, results],
        )
    }

    /// The index of the largest of the first `valid` of `products`, `[1, results]`.
    pub(super) fn largest(&mut self, products: &Value, valid: usize) -> Value {
        let row = self.b.reshape(products, &products.dims()[1..]);
        self.argmax(&row, valid)
    }
}

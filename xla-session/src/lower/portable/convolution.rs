//! Short convolutions over the rows of the cache.

use checkpoint::architecture::ShortConvolution;

use super::Emitter;
use super::kv_cache::Cache;
use crate::emit::WeightSpec;
use crate::emit::builder::{ElementType, Value};

impl Emitter<'_> {
    /// Of `x`, `[rows, hidden_size]`; and the cache with the rows of this call.
    pub(super) fn short_convolution(
        &mut self,
        layer: usize,
        convolution: &ShortConvolution,
        x: &Value,
    ) -> (Value, Cache) {
        let ShortConvolution { input, output, .. } = convolution;
        let (rows, width, seen) = (self.rows, convolution.width(), convolution.rows());
        let half = width / 2;
        let bcx = self.linear(x, input);
        let [b, c, x] = [0, 1, 2].map(|i| self.b.slice(&bcx, 1, i * width, (i + 1) * width));
        let new = self.b.mul(&b, &x);
        let [first, second] = [0, half].map(|at| {
            let part = self.b.slice(&new, 1, at, at + half);
            self.b.reshape(&part, &[rows, 1, half])
        });
        let cache = self.append(layer, &first, &second);

        // Zeros before the first row.
        let kept = [&cache.keys, &cache.values].map(|part| {
            let dims = [self.capacity, half];
            self.b.reshape(part, &dims)
        });
        let mut kept = self.b.concat(&kept, 1);
        if seen > 1 {
            let zeros = self.b.splat_f32(0.0, &[seen - 1, width]);
            kept = self.b.concat(&[zeros, kept], 0);
        }
        let taps = self.weight(WeightSpec::floats(&convolution.taps));
        let zero = self.b.splat(0, &[], ElementType::I32);
        let mut sum = self.b.splat_f32(0.0, &[rows, width]);
        for tap in 0..seen {
            let behind = self.b.splat(tap, &[], ElementType::I32);
            let start = self.b.add(&self.start.clone(), &behind);
            let seen = self.b.dynamic_slice(&kept, &[start, zero.clone()], &[rows, width]);
            let factors = self.b.slice(&taps, 1, tap, tap + 1);
            let factors = self.b.reshape(&factors, &[width]);
            let factors = self.b.broadcast(&factors, &[rows, width], &[1]);
            let term = self.b.mul(&seen, &factors);
            sum = self.b.add(&sum, &term);
        }
        let mixed = self.b.mul(&c, &sum);
        (self.linear(&mixed, output), cache)
    }
}

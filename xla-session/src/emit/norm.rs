//! RMS normalisation.

use super::Emitter;
use super::builder::{Combine, Value};

impl Emitter<'_> {
    /// `x / sqrt(mean(x²) + eps) * weight` over the last dimension of `x`; `weight` is a vector of
    /// its length.
    pub(super) fn rms_norm(&mut self, x: &Value, weight: &Value) -> Value {
        let dims = x.dims().to_vec();
        let last = dims.len() - 1;
        let outer: Vec<_> = (0..last).collect();
        let square = self.b.mul(x, x);
        let sum = self.b.reduce(&square, &[last], Combine::Add);
        let width = self.b.splat_f32(dims[last] as f32, &dims[..last]);
        let mean = self.b.div(&sum, &width);
        let eps = self.b.splat_f32(self.config.rms_norm_eps as f32, &dims[..last]);
        let mean = self.b.add(&mean, &eps);
        let factor = self.b.unary("rsqrt", &mean);
        let factor = self.b.broadcast(&factor, &dims, &outer);
        let x = self.b.mul(x, &factor);
        let weight = self.b.broadcast(weight, &dims, &[last]);
        self.b.mul(&x, &weight)
    }
}

//! RMS normalisation.

use super::builder::{Builder, Combine, Value};

impl Builder {
    /// `x / sqrt(mean(x²) + eps) * weight` over the last dimension of `x`; `weight` is a vector of
    /// its length.
    pub fn rms_norm(&mut self, x: &Value, weight: &Value, eps: f64) -> Value {
        let dims = x.dims().to_vec();
        let last = dims.len() - 1;
        let outer: Vec<_> = (0..last).collect();
        let square = self.mul(x, x);
        let sum = self.reduce(&square, &[last], Combine::Add);
        let width = self.splat_f32(dims[last] as f32, &dims[..last]);
        let mean = self.div(&sum, &width);
        let eps = self.splat_f32(eps as f32, &dims[..last]);
        let mean = self.add(&mean, &eps);
        let factor = self.unary("rsqrt", &mean);
        let factor = self.broadcast(&factor, &dims, &outer);
        let x = self.mul(x, &factor);
        let weight = self.broadcast(weight, &dims, &[last]);
        self.mul(&x, &weight)
    }
}

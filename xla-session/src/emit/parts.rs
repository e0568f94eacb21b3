//! What parts of an architecture are in StableHLO: norms, activations, caps.

use checkpoint::architecture::{Activation, Norm};

use super::builder::{Builder, Combine, Value};

impl Builder {
    /// `x / sqrt(mean(x²) + eps) * (offset + weight)` over the last dimension of `x`; `weight` is a vector
    /// of its length, and `norm` says the numbers.
    pub fn rms_norm(&mut self, x: &Value, weight: &Value, norm: &Norm) -> Value {
        let dims = x.dims().to_vec();
        let last = dims.len() - 1;
        let outer: Vec<_> = (0..last).collect();
        let square = self.mul(x, x);
        let sum = self.reduce(&square, &[last], Combine::Add);
        let width = self.splat_f32(dims[last] as f32, &dims[..last]);
        let mean = self.div(&sum, &width);
        let eps = self.splat_f32(norm.epsilon as f32, &dims[..last]);
        let mean = self.add(&mean, &eps);
        let factor = self.unary("rsqrt", &mean);
        let factor = self.broadcast(&factor, &dims, &outer);
        let x = self.mul(x, &factor);
        let weight = match norm.offset {
            0.0 => weight.clone(),
            offset => {
                let offset = self.splat_f32(offset, weight.dims());
                self.add(&offset, weight)
            }
        };
        let weight = self.broadcast(&weight, &dims, &[last]);
        self.mul(&x, &weight)
    }

    /// What a gate lets through of `up`.
    pub fn gated(&mut self, gate: &Value, up: &Value, activation: Activation) -> Value {
        let Activation::Clamped { limit, .. } = activation else {
            let gate = self.activated(gate, activation);
            return self.mul(&gate, up);
        };
        let dims = gate.dims().to_vec();
        let [most, least, one] = [limit, -limit, 1.0].map(|it| self.splat_f32(it, &dims));
        let gate = self.min(gate, &most);
        let up = self.min(up, &most);
        let up = self.max(&up, &least);
        let up = self.add(&up, &one);
        let gate = self.activated(&gate, activation);
        self.mul(&gate, &up)
    }

    /// `x`, through an activation; it is within the limit, if that has one.
    pub fn activated(&mut self, x: &Value, activation: Activation) -> Value {
        match activation {
            Activation::Silu => self.silu(x),
            Activation::GeluTanh => {
                let dims = x.dims().to_vec();
                let mut number = |number| self.splat_f32(number, &dims);
                let [root, cubic, half, one] = [
                    std::f32::consts::FRAC_2_SQRT_PI * std::f32::consts::FRAC_1_SQRT_2,
                    0.044_715,
                    0.5,
                    1.0,
                ]
                .map(&mut number);
                let square = self.mul(x, x);
                let cube = self.mul(&square, x);
                let cube = self.mul(&cubic, &cube);
                let inner = self.add(x, &cube);
                let inner = self.mul(&root, &inner);
                let tanh = self.unary("tanh", &inner);
                let above = self.add(&one, &tanh);
                let x = self.mul(&half, x);
                self.mul(&x, &above)
            }
            Activation::Clamped { alpha, .. } => {
                let power = self.scaled(x, alpha);
                let share = self.unary("logistic", &power);
                self.mul(x, &share)
            }
            Activation::ReluSquared => {
                let zero = self.splat_f32(0.0, x.dims());
                let above = self.max(x, &zero);
                self.mul(&above, &above)
            }
        }
    }

    /// `factor * x`.
    pub fn scaled(&mut self, x: &Value, factor: f32) -> Value {
        if factor == 1.0 {
            return x.clone();
        }
        let factor = self.splat_f32(factor, x.dims());
        self.mul(x, &factor)
    }

    /// `limit * tanh(x / limit)`, where there is a limit.
    pub fn capped(&mut self, x: &Value, limit: Option<f32>) -> Value {
        let Some(limit) = limit else { return x.clone() };
        let limit = self.splat_f32(limit, x.dims());
        let share = self.div(x, &limit);
        let share = self.unary("tanh", &share);
        self.mul(&share, &limit)
    }
}

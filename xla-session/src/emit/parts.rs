//! What parts of an architecture are in StableHLO: norms, activations, caps.

use checkpoint::architecture::{Activation, Norm};

use super::builder::{Builder, Combine, Value};

impl Builder {
    /// `x / sqrt(mean(x²) + eps) * (offset + weight) + bias` over the last dimension of `x`, of which the mean is
    /// taken off first where the norm is centred; `weight` and `bias` are vectors of its length, and `norm` says the
    /// numbers.
    pub fn norm(&mut self, x: &Value, weight: &Value, bias: Option<&Value>, norm: &Norm) -> Value {
        let dims = x.dims().to_vec();
        let outer: Vec<_> = (0..dims.len() - 1).collect();
        let mut x = x.clone();
        if norm.centred {
            let mean = self.mean_of_last(&x);
            let mean = self.broadcast(&mean, &dims, &outer);
            x = self.sub(&x, &mean);
        }
        let x = self.rms_normed(&x, norm.epsilon);
        let weight = match norm.offset {
            0.0 => weight.clone(),
            offset => {
                let offset = self.splat_f32(offset, weight.dims());
                self.add(&offset, weight)
            }
        };
        let last = [x.dims().len() - 1];
        let weight = self.broadcast(&weight, x.dims(), &last);
        let x = self.mul(&x, &weight);
        let Some(bias) = bias else { return x };
        let bias = self.broadcast(bias, x.dims(), &last);
        self.add(&x, &bias)
    }

    /// The mean of `x` over its last dimension.
    fn mean_of_last(&mut self, x: &Value) -> Value {
        let (width, outer) = x.dims().split_last().expect("norms are of vectors");
        let (width, outer) = (*width as f32, outer.to_vec());
        let sum = self.reduce(x, &[outer.len()], Combine::Add);
        let width = self.splat_f32(width, &outer);
        self.div(&sum, &width)
    }

    /// `x / sqrt(mean(x²) + eps)` over the last dimension of `x`.
    pub fn rms_normed(&mut self, x: &Value, epsilon: f64) -> Value {
        let dims = x.dims().to_vec();
        let last = dims.len() - 1;
        let outer: Vec<_> = (0..last).collect();
        let square = self.mul(x, x);
        let mean = self.mean_of_last(&square);
        let eps = self.splat_f32(epsilon as f32, &dims[..last]);
        let mean = self.add(&mean, &eps);
        let factor = self.unary("rsqrt", &mean);
        let factor = self.broadcast(&factor, &dims, &outer);
        self.mul(x, &factor)
    }

    /// What a gate lets through of `up`.
    pub fn gated(&mut self, gate: &Value, up: &Value, activation: Activation) -> Value {
        let Activation::Clamped { limit, .. } = activation else {
            let gate = self.activated(gate, activation, None);
            return self.mul(&gate, up);
        };
        let dims = gate.dims().to_vec();
        let [most, least, one] = [limit, -limit, 1.0].map(|it| self.splat_f32(it, &dims));
        let gate = self.min(gate, &most);
        let up = self.min(up, &most);
        let up = self.max(&up, &least);
        let up = self.add(&up, &one);
        let gate = self.activated(&gate, activation, None);
        self.mul(&gate, &up)
    }

    /// `x`, through an activation, which may have learned numbers; it is within the limit, if that has one.
    pub fn activated(
        &mut self,
        x: &Value,
        activation: Activation,
        learned: Option<&Value>,
    ) -> Value {
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
            Activation::Gelu => unreachable!("refused before"),
            Activation::Xielu => {
                self.xielu(x, learned.expect("an MLP that has it has its numbers"))
            }
        }
    }

    /// [`Activation::Xielu`] of `x`; `learned` are its four numbers.
    fn xielu(&mut self, x: &Value, learned: &Value) -> Value {
        let dims = x.dims().to_vec();
        // ln(1 + exp(a)), also where exp(a) is infinite.
        let zero = self.splat_f32(0.0, learned.dims());
        let above = self.max(learned, &zero);
        let size = self.unary("abs", learned);
        let less = self.unary("negate", &size);
        let power = self.unary("exponential", &less);
        let beyond = self.unary("log_plus_one", &power);
        let soft = self.add(&above, &beyond);
        let mut number = |of: &Value, at: usize| {
            let number = self.slice(of, 0, at, at + 1);
            let number = self.reshape(&number, &[]);
            self.broadcast(&number, &dims, &[])
        };
        let [positive, negative] = [0, 1].map(|at| number(&soft, at));
        let [beta, epsilon] = [2, 3].map(|at| number(learned, at));
        let negative = self.add(&beta, &negative);
        let square = self.mul(x, x);
        let above = self.mul(&positive, &square);
        let least = self.min(x, &epsilon);
        let power = self.unary("exponential_minus_one", &least);
        let below = self.sub(&power, x);
        let below = self.mul(&negative, &below);
        let zero = self.splat_f32(0.0, &dims);
        let is_above = self.compare("GT", x, &zero);
        let curved = self.select(&is_above, &above, &below);
        let straight = self.mul(&beta, x);
        self.add(&curved, &straight)
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

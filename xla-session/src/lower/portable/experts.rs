//! Mixtures of experts, as every expert of every row: plain StableHLO has fixed shapes.

use checkpoint::architecture::{Experts, Groups, Linear, Mlp, Parameter, Shares};

use super::Emitter;
use crate::emit::builder::{Combine, ElementType, Value};

impl Emitter<'_> {
    /// What the experts make of `x`, `[rows, hidden_size]`; those that a row did not choose weigh nothing.
    pub(super) fn experts(&mut self, mixture: &Experts, x: &Value) -> Value {
        let Experts { router, experts, shared, .. } = mixture;
        let (rows, all) = (x.dims()[0], experts.len());
        let (hidden, wide) = (self.config.hidden_size, experts[0].down.inputs());
        let logits = self.linear(x, router);
        let shares = self.shares(&logits, mixture);

        fn linear(mlp: &Mlp, which: usize) -> &Linear {
            if which < 2 { &mlp.gate_up[which] } else { &mlp.down }
        }
        let projection = |which: usize| -> Vec<&Parameter> {
            experts.iter().map(|mlp| &linear(mlp, which).weight).collect()
        };
        let biases = |which: usize| -> Vec<&Parameter> {
            experts.iter().filter_map(|mlp| linear(mlp, which).bias.as_ref()).collect()
        };
        let [gate, up] = [0, 1].map(|which| {
            let mut y = self.product(x, &projection(which));
            if let biases @ [_, ..] = &biases(which)[..] {
                let bias = self.vectors(biases);
                let bias = self.b.broadcast(&bias, y.dims(), &[1]);
                y = self.b.add(&y, &bias);
            }
            self.b.reshape(&y, &[rows, all, wide])
        });
        let h = self.b.gated(&gate, &up, experts[0].activation);
        let down = self.matrix(&projection(2));
        let h = self.rounded(&h, down.format);
        let weights = self.b.convert(&down.weights, ElementType::F32);
        let weights = self.b.reshape(&weights, &[all, hidden, wide]);
        let mut out = self.b.dot(&h, &weights, [&[1], &[0]], [&[2], &[2]]);
        if let biases @ [_, ..] = &biases(2)[..] {
            let bias = self.vectors(biases);
            let bias = self.b.reshape(&bias, &[all, hidden]);
            let bias = self.b.broadcast(&bias, out.dims(), &[0, 2]);
            out = self.b.add(&out, &bias);
        }
        let shares = self.b.broadcast(&shares, out.dims(), &[1, 0]);
        let out = self.b.mul(&out, &shares);
        let out = self.b.reduce(&out, &[0], Combine::Add);

        let Some(shared) = shared else { return out };
        let of_all = self.mlp(&shared.mlp, x);
        let Some(gate) = &shared.gate else { return self.b.add(&out, &of_all) };
        let gate = self.linear(x, gate);
        let gate = self.b.unary("logistic", &gate);
        let gate = self.b.reshape(&gate, &[rows]);
        let gate = self.b.broadcast(&gate, of_all.dims(), &[0]);
        let of_all = self.b.mul(&of_all, &gate);
        self.b.add(&out, &of_all)
    }

    /// How much each expert weighs in each row, `[rows, experts]`: the largest shares, of equal ones the
    /// first.
    fn shares(&mut self, logits: &Value, mixture: &Experts) -> Value {
        let dims = logits.dims().to_vec();
        let shares = match mixture.shares {
            Shares::Softmax => {
                let max = self.b.reduce(logits, &[1], Combine::Max);
                let max = self.b.broadcast(&max, &dims, &[0]);
                let less = self.b.sub(logits, &max);
                let powers = self.b.unary("exponential", &less);
                self.share_out(&powers, 0.0)
            }
            Shares::Sigmoid { .. } => self.b.unary("logistic", logits),
        };
        let compared = match mixture.shares.bias() {
            Some(bias) => {
                let bias = self.vector(bias);
                let bias = self.b.broadcast(&bias, &dims, &[1]);
                self.b.add(&shares, &bias)
            }
            None => shares.clone(),
        };

        let compared = match mixture.groups {
            Some(groups) => self.in_groups(&compared, groups, &mixture.shares),
            None => compared,
        };
        let chosen = self.largest(&compared, mixture.top_k);
        let zero = self.b.splat_f32(0.0, &dims);
        let shares = self.b.select(&chosen, &shares, &zero);
        let shares = match mixture.normalised {
            true => self.share_out(&shares, mixture.shares.floor()),
            false => shares,
        };
        self.b.scaled(&shares, mixture.scale)
    }

    /// `compared`, `[rows, experts]`, far below where an expert is in another group than a row's.
    fn in_groups(&mut self, compared: &Value, groups: Groups, shares: &Shares) -> Value {
        let &[rows, all] = compared.dims() else { unreachable!("rows of experts") };
        let size = all / groups.count;
        let best = match shares {
            Shares::Softmax => 1,
            Shares::Sigmoid { .. } => 2,
        };
        let by_group = self.b.reshape(compared, &[rows * groups.count, size]);
        let largest = self.largest(&by_group, best);
        let zero = self.b.splat_f32(0.0, by_group.dims());
        let scores = self.b.select(&largest, &by_group, &zero);
        let scores = self.b.reduce(&scores, &[1], Combine::Add);
        let scores = self.b.reshape(&scores, &[rows, groups.count]);
        let chosen = self.largest(&scores, groups.chosen);
        let chosen = self.b.broadcast(&chosen, &[rows, groups.count, size], &[0, 1]);
        let chosen = self.b.reshape(&chosen, &[rows, all]);
        let far = self.b.splat_f32(f32::MIN, &[rows, all]);
        self.b.select(&chosen, compared, &far)
    }

    /// Which are the `count` largest numbers of each row of `x`, of equal ones the first.
    fn largest(&mut self, x: &Value, count: usize) -> Value {
        let dims = x.dims().to_vec();
        let pairs = [dims[0], dims[1], dims[1]];
        let this = self.b.broadcast(x, &pairs, &[0, 1]);
        let other = self.b.broadcast(x, &pairs, &[0, 2]);
        let larger = self.b.compare("GT", &other, &this);
        let equal = self.b.compare("EQ", &other, &this);
        let (this, other) = (self.b.iota(&pairs, 1), self.b.iota(&pairs, 2));
        let earlier = self.b.compare("LT", &other, &this);
        let earlier = self.b.and(&equal, &earlier);
        let [larger, earlier] = [larger, earlier].map(|it| self.b.convert(&it, ElementType::F32));
        let before = self.b.add(&larger, &earlier);
        let rank = self.b.reduce(&before, &[2], Combine::Add);
        let count = self.b.splat_f32(count as f32, &dims);
        self.b.compare("LT", &rank, &count)
    }

    /// Each row of `x` divided by its sum, to which `floor` is added.
    fn share_out(&mut self, x: &Value, floor: f32) -> Value {
        let mut sum = self.b.reduce(x, &[1], Combine::Add);
        if floor > 0.0 {
            let floor = self.b.splat_f32(floor, sum.dims());
            sum = self.b.add(&sum, &floor);
        }
        let sum = self.b.broadcast(&sum, x.dims(), &[0]);
        self.b.div(x, &sum)
    }
}

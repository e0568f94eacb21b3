//! Mixtures of experts: which ones each row chooses, and what they and the one of all rows make of it.

use checkpoint::architecture::{Experts, Norm, Shares};

use super::Matrix;
use super::function::Function;
use super::threads::{several_by_threads, sum_named, threads};
use crate::emit::builder::{ElementType, Generic, Value, literal};

/// The experts of the rows of a step, of the largest share first: `top_k` of each row, but that of one row by itself
/// is there twice and weighs nothing the second time. What one number chooses the compiler would have the host
/// look up.
pub struct Routed {
    /// Which they are, `[rows, top_k]` of i32.
    pub chosen: Value,
    /// How much each of them weighs, `[rows, top_k]`.
    pub shares: Value,
}

/// One of the three projections of every expert.
#[derive(Debug, Clone, Copy)]
pub enum Projection {
    /// Through the activation.
    Gate,
    /// What it lets through.
    Up,
    /// Back to the residual stream.
    Down,
}

impl Function<'_> {
    /// What a mixture makes of `x`, normed with `norm` if there is one.
    pub fn experts(&mut self, mixture: &Experts, x: &Value, norm: Option<&Norm>) -> Value {
        let (x, norm) = self.parts.normed_for_several(self, x, norm);
        // One product with the gate of the expert of all rows, whose one output would be a dispatch by itself.
        let gate = mixture.shared.as_ref().and_then(|shared| shared.gate.as_ref());
        let readers: Vec<_> = [&mixture.router].into_iter().chain(gate).collect();
        let weights: Vec<_> = readers.iter().map(|linear| &linear.weight).collect();
        let logits = self.normed_product(&x, norm, &weights);
        let logits = self.biased(logits, &readers);
        let scores = match mixture.shares {
            Shares::Softmax => logits,
            Shares::Sigmoid { .. } => self.b.unary("logistic", &logits),
        };
        let scores = self.kept(scores);
        let routed = self.routed(mixture, &scores);
        let out = self.parts.experts(self, &x, norm, mixture, &routed);
        let Some(shared) = &mixture.shared else { return out };
        let out = self.kept(out);
        let of_all = self.mlp(&shared.mlp, &x, norm);
        if shared.gate.is_none() {
            return self.b.add(&out, &of_all);
        }
        let share = match mixture.shares {
            Shares::Softmax => {
                "%less = arith.negf %gate : f32
                 %power = math.exp %less : f32
                 %one = arith.constant 1.0 : f32
                 %whole = arith.addf %one, %power : f32
                 %share = arith.divf %one, %whole : f32"
            }
            Shares::Sigmoid { .. } => "",
        };
        let body = format!(
            "%row = linalg.index 0 : index
             %at = arith.constant {} : index
             {} = tensor.extract {}[%row, %at] : {}
             {share}
             %part = arith.mulf %in1, %share : f32
             %sum = arith.addf %in0, %part : f32
             linalg.yield %sum : f32",
            mixture.experts.len(),
            if share.is_empty() { "%share" } else { "%gate" },
            scores.name,
            scores.ty
        );
        let nest = Generic {
            loops: "r,c",
            inputs: &[(&out, "r,c"), (&of_all, "r,c")],
            result: "r,c",
            body: &body,
            config: None,
        };
        let into = self.b.empty(out.dims(), None);
        self.b.generic(&nest, &into)
    }

    /// A projection of all experts, one behind the other.
    pub fn projection(&mut self, mixture: &Experts, which: Projection) -> Matrix {
        let weights = mixture.experts.iter().map(|mlp| match which {
            Projection::Gate => &mlp.gate_up[0].weight,
            Projection::Up => &mlp.gate_up[1].weight,
            Projection::Down => &mlp.down.weight,
        });
        let weights: Vec<_> = weights.collect();
        self.matrix(&weights)
    }

    /// The experts of the largest of `scores`, `[rows, experts and maybe more]`, which are sigmoids where shares are; of
    /// equal ones the first. A row that is not a number has whichever, but some.
    fn routed(&mut self, mixture: &Experts, scores: &Value) -> Routed {
        let &Experts { top_k, normalised, scale, .. } = mixture;
        let (rows, all) = (scores.dims()[0], mixture.experts.len());
        let Value { name: score, ty } = scores;
        let bias = mixture.shares.bias().map(|bias| self.vector(bias));
        // What is compared of expert `at`.
        let compared = |called: &str, at: &str| match &bias {
            None => format!("{called} = tensor.extract {score}[%m, {at}] : {ty}\n"),
            Some(bias) => format!(
                "{called}_share = tensor.extract {score}[%m, {at}] : {ty}
                 {called}_bias = tensor.extract {}[{at}] : {}
                 {called} = arith.addf {called}_share, {called}_bias : f32\n",
                bias.name, bias.ty
            ),
        };
        let before = |i: &str| {
            format!(
                "{}
                 %larger{i} = arith.cmpf ogt, %other{i}, %own : f32
                 %equal{i} = arith.cmpf oeq, %other{i}, %own : f32
                 %first{i} = arith.cmpi ult, %k{i}, %e : index
                 %earlier{i} = arith.andi %equal{i}, %first{i} : i1
                 %before{i} = arith.ori %larger{i}, %earlier{i} : i1
                 %term{i} = arith.uitofp %before{i} : i1 to f32",
                compared(&format!("%other{i}"), &format!("%k{i}"))
            )
        };
        let body = format!(
            "{}
             {}
             linalg.yield %total : f32",
            compared("%own", "%e"),
            sum_named("", all, &before)
        );
        let into = self.b.empty(&[rows, all], None);
        let ranks = threads(self, &["m", "e"], &into, &body);
        let Value { name: rank, ty: of_ranks } = self.kept(ranks);

        let is_this = |i: &str| {
            format!(
                "%rank{i} = tensor.extract {rank}[%m, %k{i}] : {of_ranks}
                 %is_this{i} = arith.cmpf oeq, %rank{i}, %this : f32
                 %number_stored{i} = arith.index_cast %k{i} : index to i32
                 %number{i} = arith.uitofp %number_stored{i} : i32 to f32
                 %term{i} = arith.select %is_this{i}, %number{i}, %nothing : f32"
            )
        };
        // Of each expert, what shares are divided by.
        let part = |i: &str| {
            let read = format!("tensor.extract {score}[%m, %k{i}] : {ty}");
            let share = match mixture.shares {
                Shares::Softmax => format!(
                    "%score{i} = {read}
                     %less{i} = arith.subf %score{i}, %own : f32
                     %share{i} = math.exp %less{i} : f32"
                ),
                Shares::Sigmoid { .. } => format!("%share{i} = {read}"),
            };
            let most = if normalised { top_k } else { all };
            format!(
                "{share}
                 %rank{i} = tensor.extract {rank}[%m, %k{i}] : {of_ranks}
                 %most{i} = arith.constant {} : f32
                 %counts{i} = arith.cmpf olt, %rank{i}, %most{i} : f32
                 %term{i} = arith.select %counts{i}, %share{i}, %nothing : f32",
                literal(most as f32)
            )
        };
        let share = match mixture.shares {
            Shares::Softmax => format!(
                "{}
                 %share = arith.divf %scale, %total_parts : f32",
                sum_named("_parts", all, &part)
            ),
            Shares::Sigmoid { floor, .. } if normalised => format!(
                "{}
                 %floor = arith.constant {} : f32
                 %whole = arith.addf %total_parts, %floor : f32
                 %part = arith.divf %own, %whole : f32
                 %share = arith.mulf %part, %scale : f32",
                sum_named("_parts", all, &part),
                literal(floor)
            ),
            Shares::Sigmoid { .. } => "%share = arith.mulf %own, %scale : f32".into(),
        };
        let slots = if rows == 1 { top_k.max(2) } else { top_k };
        let body = format!(
            "%nothing = arith.constant 0.0 : f32
             %scale = arith.constant {} : f32
             %last_of_row = arith.constant {} : index
             %own_place = arith.minui %j, %last_of_row : index
             %is_first = arith.cmpi eq, %j, %own_place : index
             %place = arith.index_cast %own_place : index to i32
             %this = arith.uitofp %place : i32 to f32
             {}
             %found = arith.fptosi %total_at : f32 to i32
             %last = arith.constant {} : i32
             %chosen = arith.minui %found, %last : i32
             %at = arith.index_cast %chosen : i32 to index
             %own = tensor.extract {score}[%m, %at] : {ty}
             {share}
             %weight = arith.select %is_first, %share, %nothing : f32
             linalg.yield %chosen, %weight : i32, f32",
            literal(scale),
            top_k - 1,
            sum_named("_at", all, &is_this),
            all - 1,
        );
        let chosen = self.b.empty_of(ElementType::I32, &[rows, slots], None);
        let shares = self.b.empty(&[rows, slots], None);
        let both = several_by_threads(self, &["m", "j"], &[&chosen, &shares], &body);
        let [chosen, shares] = &both[..] else { unreachable!("as many as yielded") };
        Routed { chosen: self.kept(chosen.clone()), shares: self.kept(shares.clone()) }
    }
}

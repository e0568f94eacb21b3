//! The experts of a mixture: of every row with each of its experts.

use checkpoint::architecture::Experts;

use super::VulkanTarget;
use super::product::Planes;
use crate::emit::builder::Value;
use crate::lower::paged::{Function, Projection, Routed};

impl VulkanTarget {
    /// What the experts of each row of `x` make of it.
    pub(super) fn of_experts(
        &self,
        f: &mut Function<'_>,
        x: &Value,
        mixture: &Experts,
        routed: &Routed,
    ) -> Value {
        let &[rows, top_k] = routed.chosen.dims() else { unreachable!("rows of experts") };
        // The row of weights of the output of the expert `%j<i>`.
        let weights_of = |outputs: usize, j: &str, i: &str| {
            format!(
                "%expert_stored{i} = tensor.extract {}[%m, {j}] : {}
                 %expert{i} = arith.index_cast %expert_stored{i} : i32 to index
                 %outputs{i} = arith.constant {outputs} : index
                 %before{i} = arith.muli %expert{i}, %outputs{i} : index
                 %row{i} = arith.addi %before{i}, %output : index",
                routed.chosen.name, routed.chosen.ty
            )
        };
        let [gate, up] = [Projection::Gate, Projection::Up].map(|which| {
            let matrix = f.projection(mixture, which);
            let planes = Planes::of(f, &matrix);
            let outputs = matrix.weights.dims()[0] / mixture.experts.len();
            let term = |i: &str| {
                format!(
                    "{}
                     {}
                     %x{i} = tensor.extract {}[%m, %k{i}] : {}
                     %term{i} = arith.mulf %weight{i}, %x{i} : f32",
                    weights_of(outputs, "%j", i),
                    planes.element(&format!("%row{i}"), &format!("%k{i}"), i),
                    x.name,
                    x.ty
                )
            };
            let outer = [("m", rows), ("j", top_k)];
            let y = self.summed(f, &outer, outputs, matrix.columns, &term);
            // What comes of the second one goes through the activation first.
            if matches!(which, Projection::Gate) { f.kept(y) } else { y }
        });
        let h = f.b.gated(&gate, &up, mixture.experts[0].activation);
        let shares = f.b.broadcast(&routed.shares, h.dims(), &[0, 1]);
        let h = f.b.mul(&h, &shares);
        let h = f.kept(h);

        let matrix = f.projection(mixture, Projection::Down);
        let planes = Planes::of(f, &matrix);
        let (outputs, wide) = (matrix.weights.dims()[0] / mixture.experts.len(), matrix.columns);
        let term = |i: &str| {
            format!(
                "%wide{i}_all = arith.constant {wide} : index
                 %j{i} = arith.divui %k{i}, %wide{i}_all : index
                 %column{i} = arith.remui %k{i}, %wide{i}_all : index
                 {}
                 {}
                 %x{i} = tensor.extract {}[%m, %j{i}, %column{i}] : {}
                 %term{i} = arith.mulf %weight{i}, %x{i} : f32",
                weights_of(outputs, &format!("%j{i}"), i),
                planes.element(&format!("%row{i}"), &format!("%column{i}"), i),
                h.name,
                h.ty
            )
        };
        self.summed(f, &[("m", rows)], outputs, top_k * wide, &term)
    }
}

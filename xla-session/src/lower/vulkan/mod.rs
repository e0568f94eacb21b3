//! Devices of Vulkan: [graphs over pages](super::paged) of 1, 8 and 32 rows.
//!
//! Every dispatch is written as what one thread does for one element of the result: a loop, whose order
//! is the graph's own. The compiler has no reduction to find tiles for, which it cuts by the size
//! of subgroups, and no vectors of types that a device lacks; of what differs between devices
//! nothing is left but the types of memory. So a row's sums are added up in one order, whatever else is
//! in a step. It is slow: threads beside each other read rows of weights that lie apart.
//!
//! Weights in bf16 are widened by shifts of integers, and int4 by shifts of bytes, as few devices have
//! either.

mod argmax;
mod attention;
mod experts;
mod norm;
mod product;
mod target;

pub use self::target::VulkanTarget;

use checkpoint::architecture::{Attention, Experts, Norm, QkNorm};
use checkpoint::config::ModelConfig;

use super::paged::{Function, Graph, Graphs, Matrix, Parts, Routed};
use crate::emit::WeightFormats;
use crate::emit::builder::{Memory, Value};

/// Rows of the graphs of a step.
pub const STEP_ROWS: [usize; 3] = [1, 8, 32];

/// Rows of the graphs of a head.
pub const HEAD_ROWS: [usize; 2] = [1, 8];

/// Every graph of a model, which has to be one that [`supports`](super::paged::supports) says there are.
pub fn graphs(config: &ModelConfig, formats: &WeightFormats, target: &VulkanTarget) -> Vec<Graph> {
    Graphs { config, formats, parts: target }.all(&STEP_ROWS, &[], &HEAD_ROWS)
}

/// Graphs of steps and heads of so many rows, and no others.
pub fn some_graphs(
    config: &ModelConfig,
    formats: &WeightFormats,
    target: &VulkanTarget,
    steps: &[usize],
    heads: &[usize],
) -> Vec<Graph> {
    Graphs { config, formats, parts: target }.all(steps, &[], heads)
}

impl Parts for VulkanTarget {
    fn targets(&self) -> Option<String> {
        self.attribute.as_ref().map(|target| format!("hal.device.targets = [{target}]"))
    }

    fn most_pages(&self, page_bytes: usize) -> usize {
        self.most_bytes() / page_bytes
    }

    fn products(
        &self,
        f: &mut Function<'_>,
        x: &Value,
        norm: Option<&Norm>,
        matrices: &[Matrix],
    ) -> Vec<Value> {
        let (x, _) = self.normed_for_several(f, x, norm);
        matrices.iter().map(|matrix| self.product(f, &x, matrix)).collect()
    }

    fn normed_for_several<'a>(
        &self,
        f: &mut Function<'_>,
        x: &Value,
        norm: Option<&'a Norm>,
    ) -> (Value, Option<&'a Norm>) {
        let Some(norm) = norm else { return (x.clone(), None) };
        let x = self.norm(f, x, norm);
        (f.kept(x), None)
    }

    fn experts(
        &self,
        f: &mut Function<'_>,
        x: &Value,
        _: Option<&Norm>,
        mixture: &Experts,
        routed: &Routed,
    ) -> Value {
        self.of_experts(f, x, mixture, routed)
    }

    fn gather(&self, f: &mut Function<'_>, table: &Matrix, indices: &Value) -> Value {
        self.gathered(f, table, indices)
    }

    fn norm(&self, f: &mut Function<'_>, x: &Value, norm: &Norm) -> Value {
        self.normed(f, x, norm)
    }

    fn normed_heads(
        &self,
        f: &mut Function<'_>,
        x: &Value,
        attention: &Attention,
        norms: &QkNorm,
    ) -> Value {
        self.heads_normed(f, x, attention, norms)
    }

    fn attention(
        &self,
        f: &mut Function<'_>,
        queries: &Value,
        cache: &Memory,
        attention: &Attention,
    ) -> Value {
        self.attends(f, queries, cache, attention)
    }

    fn argmax(&self, f: &mut Function<'_>, logits: &Value) -> Value {
        self.most_likely(f, logits)
    }
}

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
mod norm;
mod product;
mod sum;
mod target;

pub use self::target::VulkanTarget;

use checkpoint::architecture::{Attention, Norm, QkNorm};
use checkpoint::config::ModelConfig;

use super::paged::{Function, Graph, Graphs, Matrix, Parts};
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
        let x = match norm {
            Some(norm) => {
                let x = self.norm(f, x, norm);
                f.kept(x)
            }
            None => x.clone(),
        };
        matrices.iter().map(|matrix| self.product(f, &x, matrix)).collect()
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

/// The loop nest of one thread for each element of the result, whose place is `names` in `body`;
/// `body` yields it.
fn threads(f: &mut Function<'_>, names: &[&str], into: &Value, body: &str) -> Value {
    let loops = names.join(",");
    let indices = names.iter().enumerate();
    let indices: String =
        indices.map(|(at, name)| format!("%{name} = linalg.index {at} : index\n")).collect();
    let nest = crate::emit::builder::Generic {
        loops: &loops,
        inputs: &[],
        result: &loops,
        body: &format!("{indices}{body}"),
        config: None,
    };
    f.b.generic(&nest, into)
}

//! NVIDIA GPUs: [graphs over pages](super::paged) of 1, 8, 32 and 256 rows, and where activations may be rounded those
//! of prompts.
//!
//! A step of 1, 8 or 32 rows is one command buffer, made when the graph is loaded: so all
//! extents are known, and whatever differs from call to call lies in memory.
//!
//! A dispatch takes about three microseconds on an H100 whatever it does, so concepts are fused: a step of one row
//! applies a norm inside the product behind it, and gate and up projection are one loop nest.
//! Nothing holds an `optimization_barrier`, which would split a command buffer in two.

mod argmax;
mod attention;
mod experts;
mod linear;
mod norm;
mod product;
mod tensor_cores;
mod tiles;

pub use self::tiles::CudaTiles;

use checkpoint::architecture::{Attention, Experts, FeedForward, Layer, Norm, QkNorm};
use checkpoint::config::ModelConfig;
use kernels::{Format, KV_BLOCK};

use super::paged::{Function, Graph, Graphs, Matrix, Parts, Routed};
use crate::emit::WeightFormats;
use crate::emit::builder::{Memory, Value};

/// Rows of the graphs of a step.
pub const STEP_ROWS: [usize; 4] = [1, 8, 32, 256];

/// Rows of the graphs of a prompt, whose products and attention are on the tensor cores.
pub const PROMPT_ROWS: [usize; 2] = [256, 1024];

/// Rows of the graphs of a head.
pub const HEAD_ROWS: [usize; 3] = [1, 8, 32];

/// Every graph of a model, which has to be one that [`supports`](super::paged::supports) says there are.
pub fn graphs(config: &ModelConfig, formats: &WeightFormats, tiles: &CudaTiles) -> Vec<Graph> {
    some_graphs(config, formats, tiles, &STEP_ROWS, &PROMPT_ROWS, &HEAD_ROWS)
}

/// Those of steps, prompts and heads of so many rows.
pub fn some_graphs(
    config: &ModelConfig,
    formats: &WeightFormats,
    tiles: &CudaTiles,
    steps: &[usize],
    prompts: &[usize],
    heads: &[usize],
) -> Vec<Graph> {
    let has_prompts = tiles.tensor_cores && has_prompts(config, formats);
    let prompts = if has_prompts { prompts } else { &[] };
    Graphs { config, formats, parts: tiles }.all(steps, prompts, heads)
}

/// Whether there are graphs of prompts: where activations may be rounded, and all of a layer that takes long is on the
/// tensor cores. Experts are not.
fn has_prompts(config: &ModelConfig, formats: &WeightFormats) -> bool {
    let on_tensor_cores = |layer: &Layer| {
        matches!(layer.mlp, FeedForward::Mlp(_))
            && layer.attention().is_none_or(|it| CudaTiles::has_prompts_of(it.head_dim))
    };
    formats.default == Format::Bf16Rounded && config.architecture.layers.iter().all(on_tensor_cores)
}

/// The graph of a step of `rows` rows.
pub fn step(
    config: &ModelConfig,
    formats: &WeightFormats,
    tiles: &CudaTiles,
    rows: usize,
) -> Graph {
    Graphs { config, formats, parts: tiles }.step(rows)
}

/// The graph of `rows` rows of a prompt.
pub fn prompt(
    config: &ModelConfig,
    formats: &WeightFormats,
    tiles: &CudaTiles,
    rows: usize,
) -> Graph {
    Graphs { config, formats, parts: tiles }.prompt(rows)
}

/// The graph of a head for `rows` rows.
pub fn head(
    config: &ModelConfig,
    formats: &WeightFormats,
    tiles: &CudaTiles,
    rows: usize,
) -> Graph {
    Graphs { config, formats, parts: tiles }.head(rows)
}

impl Parts for CudaTiles {
    fn targets(&self) -> Option<String> {
        None
    }

    /// Slots are 32-bit numbers.
    fn most_pages(&self, _: usize) -> usize {
        i32::MAX as usize / KV_BLOCK
    }

    fn products(
        &self,
        f: &mut Function<'_>,
        x: &Value,
        norm: Option<&Norm>,
        matrices: &[Matrix],
    ) -> Vec<Value> {
        self.products_of(f, x, norm, matrices)
    }

    fn normed_for_several<'a>(
        &self,
        f: &mut Function<'_>,
        x: &Value,
        norm: Option<&'a Norm>,
    ) -> (Value, Option<&'a Norm>) {
        self.normed_before(f, x, norm)
    }

    fn experts(
        &self,
        f: &mut Function<'_>,
        x: &Value,
        norm: Option<&Norm>,
        mixture: &Experts,
        routed: &Routed,
    ) -> Value {
        self.of_experts(f, x, norm, mixture, routed)
    }

    fn gather(&self, f: &mut Function<'_>, table: &Matrix, indices: &Value) -> Value {
        self.gathered(f, table, indices)
    }

    fn norm(&self, f: &mut Function<'_>, x: &Value, norm: &Norm) -> Value {
        let weight = f.vector(&norm.weight);
        let bias = norm.bias.as_ref().map(|bias| f.vector(bias));
        f.b.norm(x, &weight, bias.as_ref(), norm)
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

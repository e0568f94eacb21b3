//! NVIDIA GPUs: a step is rows (tokens) of any sequences, as on CPUs, in graphs of some numbers of rows.
//!
//! A step of 1, 8 or 32 rows ([`step`]) is one command buffer, made when the graph is loaded: so all
//! extents are known, and whatever differs from call to call lies in memory, tables of pages too.
//! Rows behind those in use are padding, and write to a page that belongs to nobody. The [`head`] is for
//! wanted rows of what a step left.
//!
//! A dispatch takes about two microseconds whatever it does, so concepts are fused: a step of one row
//! applies a norm inside the product behind it, and gate and up projection are one loop nest.
//! Weights lie as in the checkpoint, row after row, and are widened where they are multiplied.
//! Nothing holds an `optimization_barrier`, which would split a command buffer in two.

mod argmax;
mod attention;
mod function;
mod graph;
mod inputs;
mod kv_cache;
mod linear;
mod model;
mod product;
mod rope;
mod tiles;

pub use self::graph::{Argument, Graph, Source};
pub use self::inputs::Inputs;
pub use self::tiles::CudaTiles;

use checkpoint::architecture::{FeedForward, Layer};
use checkpoint::config::ModelConfig;

use self::function::Function;
use crate::emit::{WeightFormats, WeightSpec};

/// Rows of the graphs of a step.
pub const STEP_ROWS: [usize; 4] = [1, 8, 32, 256];

/// Rows of the graphs of a head.
pub const HEAD_ROWS: [usize; 3] = [1, 8, 32];

/// Rows of [`Source::Hidden`] that a head can choose from.
pub const HIDDEN_ROWS: usize = 512;

/// Whether there are graphs of a model, else why not.
pub fn supports(config: &ModelConfig) -> Result<(), String> {
    let on_cpus = |layer: &Layer| {
        matches!(layer.mlp, FeedForward::Experts(_)) || layer.attention.sinks.is_some()
    };
    if config.architecture.layers.iter().any(on_cpus) {
        return Err(format!(
            "models with experts or sinks ({}) run on CPUs only for now: leave out the device, or take \
             local-task",
            config.family.model_type()
        ));
    }
    Ok(())
}

/// Every graph of a model, which has to be one that [`supports`] says there are.
pub fn graphs(config: &ModelConfig, formats: &WeightFormats, tiles: &CudaTiles) -> Vec<Graph> {
    let steps = STEP_ROWS.map(|rows| step(config, formats, tiles, rows));
    let heads = HEAD_ROWS.map(|rows| head(config, formats, tiles, rows));
    steps.into_iter().chain(heads).collect()
}

/// Every weight that some of the graphs take, once.
pub fn weights(graphs: &[Graph]) -> Vec<WeightSpec> {
    let mut specs = Vec::new();
    for argument in graphs.iter().flat_map(|graph| &graph.arguments) {
        if let Source::Weight(spec, _) = &argument.source
            && !specs.contains(spec)
        {
            specs.push(spec.clone());
        }
    }
    specs
}

/// From `rows` tokens to the residual stream behind the last layer: `step_<rows>`.
pub fn step(
    config: &ModelConfig,
    formats: &WeightFormats,
    tiles: &CudaTiles,
    rows: usize,
) -> Graph {
    let mut function = Function::new(config, formats, tiles, rows);
    function.body();
    function.finish(format!("step_{rows}"))
}

/// From `rows` wanted rows of that to their logits and most likely tokens: `head_<rows>`.
pub fn head(
    config: &ModelConfig,
    formats: &WeightFormats,
    tiles: &CudaTiles,
    rows: usize,
) -> Graph {
    let mut function = Function::new(config, formats, tiles, rows);
    function.head();
    function.finish(format!("head_{rows}"))
}

//! What lowerings for GPUs share: a step is rows (tokens) of any sequences over pages, in graphs of some
//! numbers of rows.
//!
//! A step takes the tokens of its rows to the residual stream behind the last layer; a
//! head is for wanted rows of what a step left. Whatever differs from call to call lies in
//! memory, tables of pages too. Rows behind those in use are padding, and write to a page that belongs to
//! nobody. A graph of a prompt is that of a step whose rows are all of one sequence. Weights lie as in the
//! checkpoint, row after row, and are widened where they are multiplied.
//!
//! What a device does in a way of its own are `Parts`: products, norms, attention, the choice
//! of tokens.

mod convolution;
mod experts;
mod function;
mod graph;
mod inputs;
mod kv_cache;
mod matrix;
mod model;
mod rope;
mod threads;

pub(super) use self::experts::{Projection, Routed};
pub(super) use self::function::Function;
pub use self::graph::{Argument, Graph, Source};
pub use self::inputs::Inputs;
pub(super) use self::matrix::Matrix;
pub(super) use self::threads::{sum, sum_named, threads};

use checkpoint::architecture::{Attention, Experts, FeedForward, Layer, Norm, QkNorm};
use checkpoint::config::ModelConfig;

use crate::emit::builder::{Memory, Value};
use crate::emit::{WeightFormats, WeightSpec};

/// Rows of [`Source::Hidden`] that a head can choose from.
pub const HIDDEN_ROWS: usize = 2048;

/// How a kind of device computes the parts of a layer.
pub(super) trait Parts {
    /// An attribute that a module for the device has, `hal.device.targets = […]`, where its graphs say
    /// what they are compiled for.
    fn targets(&self) -> Option<String>;

    /// Pages that a dispatch counts with at most, each of so many bytes; no cache has more.
    fn most_pages(&self, page_bytes: usize) -> usize;

    /// `x` `[rows, columns]`, normed with `norm` if there is one, times each of `matrices`, which
    /// have as many rows as each other; `[rows, matrix rows]` each.
    fn products(
        &self,
        f: &mut Function<'_>,
        x: &Value,
        norm: Option<&Norm>,
        matrices: &[Matrix],
    ) -> Vec<Value>;

    /// `x`, normed with `norm`, for several [products](Self::products); or as it is, with the norm, where those
    /// would rather apply it.
    fn normed_for_several<'a>(
        &self,
        f: &mut Function<'_>,
        x: &Value,
        norm: Option<&'a Norm>,
    ) -> (Value, Option<&'a Norm>);

    /// What the experts that rows have chosen make of `x`, `[rows, columns]`, normed with `norm` if there is one:
    /// the sum of each row's, times their shares.
    fn experts(
        &self,
        f: &mut Function<'_>,
        x: &Value,
        norm: Option<&Norm>,
        mixture: &Experts,
        routed: &Routed,
    ) -> Value;

    /// Rows of a row-major table at `indices`, widened, `[indices, columns]`. The caller keeps indices
    /// within the table.
    fn gather(&self, f: &mut Function<'_>, table: &Matrix, indices: &Value) -> Value;

    /// `x`, normed over its last dimension.
    fn norm(&self, f: &mut Function<'_>, x: &Value, norm: &Norm) -> Value;

    /// `x`, `[rows, queries, keys and values, head_dim]`, each of the queries normed with their norm, and keys
    /// with theirs. Nobody reads values of the result, unless they [are normed](Attention::value_norm) too.
    fn normed_heads(
        &self,
        f: &mut Function<'_>,
        x: &Value,
        attention: &Attention,
        norms: &QkNorm,
    ) -> Value;

    /// Attends from `queries`, `[rows, heads, head_dim]`, to every token of the pages of the row's
    /// sequence that is not later and, with a window, among the latest; `[rows, heads * head_dim]`.
    /// `cache` is the pages of the layer. Rows [of a prompt](Function::of_prompt) are of one sequence.
    fn attention(
        &self,
        f: &mut Function<'_>,
        queries: &Value,
        cache: &Memory,
        attention: &Attention,
    ) -> Value;

    /// The index of the largest logit of each row of `logits`, `[rows, n]`: the lowest on ties,
    /// `i32::MAX` where one of them is NaN; `[rows]`.
    fn argmax(&self, f: &mut Function<'_>, logits: &Value) -> Value;
}

/// `%weight` of a head whose number is `head`: `%offset` and `%own`, its norm's weight; but one of values that are
/// normed.
pub(super) fn weight_of_head(head: &str, attention: &Attention) -> String {
    let sum = "arith.addf %offset, %own : f32";
    if attention.value_norm.is_none() {
        return format!("%weight = {sum}");
    }
    let values = attention.heads + attention.own_kv_heads();
    format!(
        "%sum = {sum}
         %values = arith.constant {values} : index
         %is_value = arith.cmpi uge, {head}, %values : index
         %plain = arith.constant 1.0 : f32
         %weight = arith.select %is_value, %plain, %sum : f32"
    )
}

/// Whether there are graphs of a model, else why not.
pub fn supports(config: &ModelConfig) -> Result<(), String> {
    let layers = || config.architecture.layers.iter().find_map(of_cpus_alone);
    let Some(part) = super::of_encoders(&config.architecture).or_else(layers) else {
        return Ok(());
    };
    Err(format!(
        "models with {part} ({}) run on CPUs only for now: leave out the device, or take local-task",
        config.family.model_type()
    ))
}

/// What of a layer no graph has.
fn of_cpus_alone(layer: &Layer) -> Option<&'static str> {
    let has = |is: fn(&Attention) -> bool| layer.attention().is_some_and(is);
    let experts = match &layer.mlp {
        FeedForward::Experts(experts) => Some(&**experts),
        _ => None,
    };
    let parts = [
        (layer.mixer.latent().is_some(), "latent attention"),
        (layer.mixer.state().is_some(), "states of sequences"),
        (has(|it| it.sinks.is_some()), "attention sinks"),
        (has(|it| it.gated), "gates of attention"),
        (has(Attention::has_norms_of_each_head), "norms of each head by itself"),
        (experts.is_some_and(|it| it.groups.is_some()), "experts in groups"),
        (experts.is_some_and(has_biases), "experts with biases"),
    ];
    parts.into_iter().find_map(|(is, name)| is.then_some(name))
}

fn has_biases(mixture: &Experts) -> bool {
    let mut linears = mixture.experts.iter().flat_map(|mlp| mlp.gate_up.iter().chain([&mlp.down]));
    linears.any(|linear| linear.bias.is_some())
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

/// Writes the graphs of a model for a kind of device.
pub(super) struct Graphs<'a> {
    pub config: &'a ModelConfig,
    pub formats: &'a WeightFormats,
    pub parts: &'a dyn Parts,
}

impl Graphs<'_> {
    /// Steps, prompts and heads of so many rows.
    pub fn all(&self, steps: &[usize], prompts: &[usize], heads: &[usize]) -> Vec<Graph> {
        let steps = steps.iter().map(|&rows| self.step(rows));
        let prompts = prompts.iter().map(|&rows| self.prompt(rows));
        steps.chain(prompts).chain(heads.iter().map(|&rows| self.head(rows))).collect()
    }

    /// From `rows` tokens to the residual stream behind the last layer: `step_<rows>`.
    pub fn step(&self, rows: usize) -> Graph {
        let mut function = Function::new(self.config, self.formats, self.parts, rows);
        function.body();
        function.finish(format!("step_{rows}"))
    }

    /// The same from `rows` tokens of one sequence, which follow each other: `prompt_<rows>`.
    pub fn prompt(&self, rows: usize) -> Graph {
        let mut function = Function::of_prompt(self.config, self.formats, self.parts, rows);
        function.body();
        function.finish(format!("prompt_{rows}"))
    }

    /// From `rows` wanted rows of that to their logits and most likely tokens: `head_<rows>`.
    pub fn head(&self, rows: usize) -> Graph {
        let mut function = Function::new(self.config, self.formats, self.parts, rows);
        function.head();
        function.finish(format!("head_{rows}"))
    }
}

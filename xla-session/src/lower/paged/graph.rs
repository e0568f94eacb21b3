//! What a graph is: its text, and where each argument of its function comes from.

use crate::emit::WeightSpec;
use crate::emit::builder::TensorType;

/// A module of one function, `@model.<name>`. It takes buffer views, then a fence to wait for and one to
/// reach, and returns nothing: what it makes goes to memory that it is given.
#[derive(Debug, Clone)]
pub struct Graph {
    /// The function's name: "step_8", "prompt_256", "head_1".
    pub name: String,
    /// The MLIR module. Loading it calls `engine.pages`, which returns how many pages there are as
    /// an i64.
    pub text: String,
    /// Rows of one call, those that are padding among them.
    pub rows: usize,
    /// Whether they are consecutive tokens of one sequence.
    pub of_prompt: bool,
    /// The function's arguments, in order.
    pub arguments: Vec<Argument>,
}

/// One argument of a graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Argument {
    /// Where its value comes from.
    pub source: Source,
    /// Its type.
    pub ty: TensorType,
}

/// Where an argument's value comes from. In a step every row is a token of some sequence.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Source {
    /// The token of each row, `[rows]`.
    Tokens,
    /// Its position in its sequence, `[rows]`.
    Positions,
    /// Where its keys and values go, `[rows]`: the page times 64, and the row of the page.
    Slots,
    /// Where the table of its sequence begins in [`Pages`](Self::Pages), `[rows]`.
    Tables,
    /// Pages of the longest sequence of the step, `[1]`; or a number that the caller passes.
    Used,
    /// Cosines of each row's rotary angles, `[rows, width / 2]`, of one of the model's ropes.
    Cos(usize),
    /// Sines of them, `[rows, width / 2]`.
    Sin(usize),
    /// The numbers of the pages of all sequences of the step, one table behind the other.
    Pages,
    /// The pages of a layer, `[pages, 64, 2 * kv_heads, head_dim]` of f32 as bytes: of each token its
    /// keys, then its values; `[pages, 64, 2, hidden_size / 2]` where it convolves. Updated in place.
    Cache(usize),
    /// The residual stream behind the last layer: a step writes `[rows, hidden_size]`, a head reads
    /// `[HIDDEN_ROWS, hidden_size]`.
    Hidden,
    /// The rows of [`Hidden`](Self::Hidden) that a head is for, `[rows]`.
    Wanted,
    /// Memory for their logits, `[rows, vocab_size]`.
    Logits,
    /// Memory for their most likely tokens, `[rows]`; `i32::MAX` where logits are not numbers.
    Picked,
    /// A plane of a weight.
    Weight(WeightSpec, usize),
    /// Memory for what dispatches leave to later ones, bytes, at places that the graph chose.
    Kept,
}

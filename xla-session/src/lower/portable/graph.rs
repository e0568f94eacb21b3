//! What a graph is: its text, and where each of its arguments comes from.

use crate::emit::WeightSpec;
use crate::emit::builder::TensorType;

/// One function of one module, ready for a StableHLO compiler.
#[derive(Debug, Clone)]
pub struct Graph {
    /// The function's name: "decode_step", "prefill_256".
    pub name: String,
    /// The MLIR module.
    pub text: String,
    /// Tokens of one call.
    pub rows: usize,
    /// The function's arguments, in order.
    pub arguments: Vec<Argument>,
    /// The function's results, in order: the most likely next token `[1]`, the logits of the last
    /// row `[vocab_size]`, then for each layer that has some the keys and the values.
    pub results: Vec<TensorType>,
}

/// One argument of a graph.
#[derive(Debug, Clone, PartialEq)]
pub struct Argument {
    /// Its type.
    pub ty: TensorType,
    /// Where its value comes from.
    pub source: Source,
}

/// Where an argument's value comes from.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Source {
    /// The token ids of this call, `[rows]`; ids behind [`Last`](Self::Last) are padding.
    Tokens,
    /// The position of the first token in the context.
    Start,
    /// The row whose next token is wanted: the last one that is not padding.
    Last,
    /// Cosines of the rotary angles, `[capacity, width / 2]`, of one of the model's ropes.
    RopeCos(usize),
    /// Sines of the rotary angles, `[capacity, width / 2]`, of one of the model's ropes.
    RopeSin(usize),
    /// The keys of a layer, `[kv_heads, capacity, head_dim]`; the first half of its rows where it convolves,
    /// `[1, capacity, hidden_size / 2]`.
    Keys(usize),
    /// The values of a layer, or the other half, as the keys.
    Values(usize),
    /// A weight, row by row.
    Weight(WeightSpec),
}

//! What an emitted graph is: its text, and where each of its arguments comes from.

use kernels::quantise::SKETCH;
use kernels::{Format, GROUP};

use super::builder::{DYNAMIC, ElementType, TensorType};

/// One function of one module, ready for a StableHLO compiler.
#[derive(Debug, Clone)]
pub struct Graph {
    /// The function's name: "decode_step", "prefill_256".
    pub name: String,
    /// The MLIR module.
    pub text: String,
    /// Tokens of one call.
    pub rows: usize,
    /// Blocks of the KV caches that the module has a function for, `<name>_<blocks>` each, fewest
    /// first; none where its one function takes any cache.
    pub capacities: Vec<usize>,
    /// The function's arguments, in order; where there are several, those of the one for the
    /// largest caches.
    pub arguments: Vec<Argument>,
    /// The function's results, in order: the most likely next token `[1]`, the logits of the last
    /// row `[vocab_size]`, then for each layer the keys and the
    /// values.
    pub results: Vec<TensorType>,
}

/// One argument of a graph.
#[derive(Debug, Clone, PartialEq)]
pub struct Argument {
    /// Its type; where [`Source::is_scalar`], IREE targets take a scalar.
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
    /// The same in the device's memory, a tensor without dimensions: what a reusable command buffer
    /// takes in place of [`Start`](Self::Start).
    Position,
    /// The row whose next token is wanted: the last one that is not padding.
    Last,
    /// Cosines of the rotary angles, `[positions, head_dim / 2]`.
    RopeCos,
    /// Sines of the rotary angles, `[positions, head_dim / 2]`.
    RopeSin,
    /// The keys of a layer; updated in place on IREE targets.
    Keys(usize),
    /// The values of a layer; updated in place on IREE targets.
    Values(usize),
    /// A weight, in the layout that the target wants.
    Weight(WeightSpec),
    /// What lies beside a weight: the tensor of this number in its [planes](WeightSpec::planes).
    Beside(WeightSpec, usize),
    /// Memory for the result of this number; of graphs that take buffer views only.
    Result(usize),
    /// Memory for what lies between, bytes; of graphs that take buffer views only.
    Scratch,
    /// Memory for what dispatches leave to later ones in places that the graph chose, bytes; of
    /// graphs with a reusable command buffer only.
    Kept,
}

impl Source {
    /// Whether it is a number of each call.
    pub fn is_scalar(&self) -> bool {
        matches!(self, Self::Start | Self::Last)
    }
}

/// How a weight is made from the checkpoint's tensors. Graphs that name the same spec share one
/// device buffer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WeightSpec {
    /// The tensors, joined along their rows, with the rows of each.
    pub parts: Vec<(String, usize)>,
    /// Columns of each; 0 for vectors.
    pub columns: usize,
    /// How each weight is stored: a [`Format::stored`].
    pub format: Format,
    /// How they lie in device memory.
    pub layout: Layout,
}

/// How the elements of a weight lie in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Layout {
    /// As in the checkpoint: `[rows]` or `[rows, columns]`. Quantised weights have whole groups of
    /// columns, those behind the last zero: int8 is `[rows, groups, 32]`, int4
    /// `[rows, groups, 16]` of bytes, the low half of byte `i` being weight `2 i` of its group.
    /// There is no int6.
    Rows,
    /// `[ceil(rows / lanes), columns, lanes]`: `lanes` consecutive rows interleaved, so that a
    /// vector register holds the same column of each. Rows behind the last are zero. Quantised
    /// weights, which only kernels read so, are `[ceil(rows / lanes), bytes]`, each block as
    /// [`pack_block`](kernels::quantise::pack_block) has it, its scales among them.
    Packed {
        /// Rows in one block.
        lanes: usize,
    },
    /// The blocks of [`Packed`](Self::Packed), each
    /// [compressed](kernels::compress) without loss to as many bytes as it takes: `[bytes]`.
    Compressed {
        /// Rows in one block.
        lanes: usize,
    },
    /// Beside floats that lie otherwise too: a [sketch](kernels::quantise::sketch_block) of the blocks
    /// of [`Packed`](Self::Packed), which tells which products with the weights may be the largest.
    Sketch {
        /// Rows in one block.
        lanes: usize,
    },
}

impl WeightSpec {
    /// Rows of all parts together.
    pub fn rows(&self) -> usize {
        self.parts.iter().map(|(_, rows)| rows).sum()
    }

    /// The type of the tensor that holds the weights.
    pub fn ty(&self) -> TensorType {
        let dims = match self.layout {
            Layout::Rows if self.columns == 0 => vec![self.rows()],
            Layout::Rows => match self.format {
                Format::Int8 => vec![self.rows(), self.groups(), GROUP],
                Format::Int4 => vec![self.rows(), self.groups(), GROUP / 2],
                _ => vec![self.rows(), self.columns],
            },
            Layout::Packed { lanes } => {
                let blocks = self.rows().div_ceil(lanes);
                match self.format.is_quantised() {
                    true => vec![blocks, self.format.block_bytes(self.columns)],
                    false => vec![blocks, self.columns, lanes],
                }
            }
            Layout::Compressed { .. } => vec![DYNAMIC],
            Layout::Sketch { lanes } => {
                vec![self.rows().div_ceil(lanes), SKETCH.block_bytes(self.columns)]
            }
        };
        TensorType::new(&dims, self.element())
    }

    /// The type of the tensor that holds their scales, `[rows, groups]`, when they have one of their
    /// own: where they lie in [rows](Layout::Rows).
    pub fn scales(&self) -> Option<TensorType> {
        let own = self.format.is_quantised() && self.layout == Layout::Rows;
        own.then(|| TensorType::new(&[self.rows(), self.groups()], ElementType::F16))
    }

    /// The type of the tensor that says where each block begins, `[blocks]`, bytes from the first
    /// one; when they are compressed.
    pub fn blocks(&self) -> Option<TensorType> {
        let Layout::Compressed { lanes } = self.layout else { return None };
        Some(TensorType::new(&[self.rows().div_ceil(lanes)], ElementType::I64))
    }

    /// The type of the tensor of its rows' errors, `[blocks, lanes]`, when it is a sketch.
    pub fn errors(&self) -> Option<TensorType> {
        let Layout::Sketch { lanes } = self.layout else { return None };
        Some(TensorType::new(&[self.rows().div_ceil(lanes), lanes], ElementType::F32))
    }

    /// The types of all tensors that it consists of: the weights, then what lies beside them.
    pub fn planes(&self) -> Vec<TensorType> {
        let beside = [self.scales(), self.blocks(), self.errors()].into_iter().flatten();
        std::iter::once(self.ty()).chain(beside).collect()
    }

    /// Bytes of the tensor that holds the weights, at most.
    pub fn most_bytes(&self) -> usize {
        match self.layout {
            Layout::Compressed { lanes } => {
                self.rows().div_ceil(lanes) * kernels::most_bytes(self.format, self.columns)
            }
            _ => self.ty().bytes(),
        }
    }

    fn groups(&self) -> usize {
        self.columns.div_ceil(GROUP)
    }

    /// The elements of the tensor that holds the weights.
    fn element(&self) -> ElementType {
        match (self.format, self.layout) {
            (_, Layout::Compressed { .. } | Layout::Sketch { .. }) => ElementType::I8,
            (Format::F32, _) => ElementType::F32,
            (Format::F16, _) => ElementType::F16,
            (Format::Bf16 | Format::Bf16Rounded, _) => ElementType::Bf16,
            (Format::Int8 | Format::Int6 | Format::Int4, _) => ElementType::I8,
        }
    }
}

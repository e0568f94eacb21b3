//! Weights as graphs take them: which tensors of the checkpoint, in which layout.

use checkpoint::architecture::Parameter;
use kernels::quantise::SKETCH;
use kernels::{Format, GROUP};

use super::builder::{DYNAMIC, ElementType, TensorType};

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
    /// Few rows that stay in f32: the taps of a convolution, `[columns, rows]`, or norms, `[heads, width]`.
    pub fn floats(of: &Parameter) -> Self {
        Self {
            parts: vec![(of.name.clone(), of.shape[0])],
            columns: of.shape.last().copied().unwrap_or(0),
            format: Format::F32,
            layout: Layout::Rows,
        }
    }

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
            _ => ElementType::I8,
        }
    }
}

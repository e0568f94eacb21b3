//! A small typed builder of one MLIR function: StableHLO, and `linalg.generic` where a target
//! wants to say its own tiles.

mod dispatch;
mod kernel;
mod linalg;
mod linalg_ext;
mod stablehlo;

use std::fmt::{self, Display, Write as _};

pub use dispatch::{Memory, Workgroups};
pub use kernel::{Call, Executable};
pub use linalg::{Generic, Index};
pub use linalg_ext::{Attention, Gather, Scatter};
pub use stablehlo::Combine;

/// The element types that our graphs use, under MLIR's names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ElementType {
    /// IEEE single precision; all arithmetic is in it.
    F32,
    /// IEEE half precision (storage only).
    F16,
    /// bfloat16 (storage only).
    Bf16,
    /// Signless 32-bit integer: tokens, positions.
    I32,
    /// Signless 64-bit integer: offsets.
    I64,
    /// Signless 16-bit integer, the bits of a bfloat16: only inside a graph.
    I16,
    /// Signless 8-bit integer: int8 weights, two int4 weights, bytes of blocks.
    I8,
    /// Signless 4-bit integer, two in a byte, the first in its low half: only inside a graph.
    I4,
    /// Predicates.
    I1,
}

impl ElementType {
    /// The name in MLIR.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::I16 => "i16",
            Self::I8 => "i8",
            Self::I4 => "i4",
            Self::I1 => "i1",
        }
    }

    /// Bytes of one element in a buffer; none holds [`I4`](Self::I4).
    pub fn bytes(self) -> usize {
        match self {
            Self::I64 => 8,
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::Bf16 | Self::I16 => 2,
            Self::I8 | Self::I4 | Self::I1 => 1,
        }
    }
}

/// A dimension that is known only at run time.
pub const DYNAMIC: usize = usize::MAX;

/// A ranked tensor, or a scalar when `scalar` is set.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// Extents, outermost first; [`DYNAMIC`] where it is known only at run time.
    pub dims: Vec<usize>,
    /// The elements.
    pub element: ElementType,
}

impl TensorType {
    /// A tensor type.
    pub fn new(dims: &[usize], element: ElementType) -> Self {
        Self { dims: dims.to_vec(), element }
    }

    /// Bytes of a tensor whose extents are all known.
    pub fn bytes(&self) -> usize {
        self.dims.iter().product::<usize>() * self.element.bytes()
    }
}

impl Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("tensor<")?;
        for &dim in &self.dims {
            if dim == DYNAMIC { f.write_str("?x")? } else { write!(f, "{dim}x")? }
        }
        write!(f, "{}>", self.element.as_str())
    }
}

/// An SSA value that is a tensor.
#[derive(Debug, Clone)]
pub struct Value {
    /// With the leading `%`.
    pub name: String,
    /// Its type.
    pub ty: TensorType,
}

impl Value {
    /// Extents, outermost first.
    pub fn dims(&self) -> &[usize] {
        &self.ty.dims
    }
}

/// The body of a function under construction, and the kernels that it calls, which its module has to hold.
#[derive(Debug, Default)]
pub struct Builder {
    text: String,
    next: usize,
    /// What [`call`](Self::call) calls.
    pub executable: Executable,
}

impl Builder {
    /// The operations emitted so far, one a line.
    pub fn text(&self) -> &str {
        &self.text
    }

    fn fresh(&mut self) -> String {
        self.next += 1;
        format!("%{}", self.next)
    }

    /// Emits `%n = <operation>` and returns the tensor that it makes.
    pub fn op(&mut self, dims: &[usize], element: ElementType, operation: impl Display) -> Value {
        let name = self.fresh();
        let _ = writeln!(self.text, "    {name} = {operation}");
        Value { name, ty: TensorType::new(dims, element) }
    }
}

/// Minus infinity as an MLIR `f32` literal.
pub const NEG_INF: &str = "0xFF800000";

/// The exact MLIR literal of `value`.
pub fn literal(value: f32) -> String {
    format!("0x{:08X}", value.to_bits())
}

fn list(items: &[usize]) -> String {
    format!("[{}]", join(items.iter().map(usize::to_string)))
}

fn join(items: impl Iterator<Item = String>) -> String {
    items.collect::<Vec<_>>().join(", ")
}

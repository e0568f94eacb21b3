//! How the weights of a matrix are stored in device memory.

use super::builder::ElementType;
use crate::checkpoint::Dtype;

/// How the weights of a matrix are stored. Arithmetic is float32 in every format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// IEEE single precision.
    F32,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
    /// Groups of [`GROUP`] weights: integers of 8 bits times one f16 scale.
    Int8,
    /// Groups of [`GROUP`] weights: integers of 4 bits times one f16 scale.
    Int4,
}

/// Consecutive weights of one output row that share a scale.
pub const GROUP: usize = 32;

impl Format {
    /// The name in symbols and files.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
            Self::Int4 => "int4",
        }
    }

    /// Whether weights are integers with scales.
    pub fn is_quantised(self) -> bool {
        matches!(self, Self::Int8 | Self::Int4)
    }

    /// The elements of the tensor that holds the weights: eight int4 weights share an `i32`.
    pub fn element(self) -> ElementType {
        match self {
            Self::F32 => ElementType::F32,
            Self::F16 => ElementType::F16,
            Self::Bf16 => ElementType::Bf16,
            Self::Int8 => ElementType::I8,
            Self::Int4 => ElementType::I32,
        }
    }
}

impl From<Dtype> for Format {
    fn from(dtype: Dtype) -> Self {
        match dtype {
            Dtype::F32 => Self::F32,
            Dtype::F16 => Self::F16,
            Dtype::BF16 => Self::Bf16,
        }
    }
}

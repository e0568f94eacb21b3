//! What all [lowerings](crate::lower) write graphs with: a builder of MLIR, and weights as graphs name
//! them.

pub mod builder;
mod formats;
mod parts;
mod weight;

pub use builder::ElementType;
pub use formats::WeightFormats;
pub(crate) use formats::in_rows;
#[cfg(feature = "iree")]
pub(crate) use formats::stored_format;
pub use kernels::{Format, KV_BLOCK, KvFormat};
pub use weight::{Layout, WeightSpec};

//! Quantised folders in Hugging Face layout: matrices that lie in several tensors, and what their
//! values are.
//!
//! A matrix is integers (or floats of eight bits), scales that consecutive columns share, and often what
//! is taken off or added ([`Encoded`]). A file for each encoding says what its tensors are called and
//! how they lie; that is checked against the shape which the model's configuration demands. Values are
//! those of the format's own formula in float32, to the bit. What a folder says of activations is
//! not applied: weights alone are quantised here.
//!
//! The modules in reading order: where integers lie (`codes`), a matrix and its values (`encoded`), the
//! blocks that kernels multiply with (`blocks`), the tensors that a matrix may lie in (`parts`), the
//! encodings, which of them a folder has (`quantisation`), and experts that lie in one tensor (`stacked`).

mod codes;
mod encoded;

mod blocks;
mod parts;

mod awq;
mod bitsandbytes;
mod compressed_tensors;
mod fp8;
mod gptq;
mod mlx;
mod mxfp4;

mod quantisation;
mod stacked;

pub use encoded::Encoding;
pub(crate) use encoded::{Encoded, Values};
pub(crate) use parts::Parts;
pub(crate) use quantisation::Quantisation;
pub(crate) use stacked::cut_up;

//! Models on disk, in Hugging Face layout.
//!
//! The modules in reading order: what a model is ([`config`]), how its files are read
//! ([`LoadMode`]), and its weights as named tensors ([`Checkpoint`], [`Tensor`]).

pub mod config;

mod load_mode;

mod checkpoint;
mod file;
mod header;
mod layout;
mod random;
mod tensor;

mod error;

pub use checkpoint::{Checkpoint, FileStamp, Listed};
pub use error::{Error, Result};
pub use load_mode::LoadMode;
pub use tensor::{Dtype, Tensor};

//! Models on disk, in Hugging Face layout or as GGUF.
//!
//! The modules in reading order: what a model computes, as parts with their parameters
//! ([`architecture`]), how each family composes them ([`families`]), what GGUF files say ([`gguf`]),
//! what a model's configuration says in all ([`config`]), how its files are read ([`LoadMode`]), how quantised
//! folders encode matrices ([`Encoding`]), its weights as named tensors ([`Checkpoint`], [`Tensor`]), and how
//! any of them become a folder in Hugging Face layout ([`Conversion`]).

mod dtype;
mod keys;
mod latent;
mod names;
mod rope;

pub mod architecture;
pub mod families;

pub mod gguf;

pub mod config;

mod load_mode;

mod encodings;

mod checkpoint;
mod converted;
mod file;
mod header;
mod key_heads;
mod layout;
mod random;
mod tensor;

mod convert;

mod error;

pub use checkpoint::{Checkpoint, FileStamp, Listed, Matrices};
pub use convert::{Conversion, ConvertOptions, Float};
pub use dtype::Dtype;
pub use encodings::Encoding;
pub use error::{Error, Result};
pub use load_mode::LoadMode;
pub use tensor::Tensor;

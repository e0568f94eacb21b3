//! GGUF: one file, or parts of one, with a model's weights and all that is said of it.
//!
//! The modules in reading order: bytes that are counted before they are read (`reader`), what is said
//! of a model ([`Metadata`]), the types of tensors (`types`) and their `blocks`, the header of a file
//! (`header`), the files of a model (`set`), which `architectures` there are, which tokens end an answer
//! (`ends`), and what Hugging Face calls their tensors (`names`) and keys (`keys`).

mod reader;

mod metadata;

pub(crate) mod blocks;
mod types;

mod header;
mod set;

mod architectures;
mod ends;
mod keys;
mod names;

pub(crate) use architectures::Architecture;
pub(crate) use keys::{
    HuggingFace, NORMS_ARE_WHOLE, RANKS, SAMPLING, VALUE_HEADS_ARE_TILED, hugging_face,
};
pub use metadata::{Metadata, Strings, Value};
pub(crate) use names::stored_name;
pub(crate) use set::{Part, Set};
pub(crate) use types::supported;

//! Parameters: the weights that programs name instead of containing them.
//!
//! A program that says `#flow.parameter.named<"model"::"w">` asks for the parameter `w` of the
//! scope `model` when its session is built. [`ParameterIndex`] reads archives of them (`.irpa`,
//! `.gguf`, `.safetensors`) or collects what is in memory, and writes `.irpa`;
//! [`ParameterProvider`] answers with whatever Rust code makes, and takes what programs write.

mod answer;
mod archive;
mod formats;
mod index;
mod lending;
mod memory;
mod provider;
mod request;

pub use formats::ParameterFormat;
pub use index::{ParameterEntry, ParameterIndex};
pub use provider::ParameterProvider;
pub(crate) use provider::{Load, Provider, Providers};

#![doc = include_str!("../README.md")]
#![warn(missing_debug_implementations)]

pub mod files;
pub mod form;
#[cfg(feature = "hub")]
pub mod hub;
pub mod sentence_transformers;

mod progress;
mod vocabulary;

mod llm;
mod response;

mod error;

pub use error::{Error, Result};
pub use files::Files;
pub use form::Form;
pub use llm::{Ask, Llm, LlmOptions, Vectors};
pub use progress::{Progress, Transferred};
pub use response::{End, Response, Whole};
pub use text::{self, Message, Part};
pub use xla_session::{self, Precision};

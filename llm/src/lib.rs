//! Language models in a program, asked in words by many at once.
//!
//! [`Llm::open`] finds a model in a folder or on the hub ([`Files`]), [`Llm::chat`] answers, in parts ([`Response`]): words,
//! thoughts, calls of tools, kept to a [`Form`] where one is asked for. The README has whole programs.

#![warn(missing_debug_implementations)]

/// The programs of the README, which are compiled: run, they would fetch models.
#[cfg(all(doctest, feature = "iree"))]
#[doc = include_str!("../README.md")]
struct Readme;

pub mod files;
pub mod form;
#[cfg(feature = "hub")]
pub mod hub;
pub mod ranking;
pub mod sentence_transformers;
pub mod tools;

mod dense;
mod progress;
mod vocabulary;

mod options;

mod llm;
mod response;

mod error;

pub use dense::Dense;
pub use error::{Error, Result};
pub use files::Files;
pub use form::{Form, FormError};
pub use llm::{Llm, NO_INFILL, served_name};
pub use options::{Ask, LlmOptions, Vectors};
pub use progress::{Progress, Transferred};
pub use ranking::Ranking;
pub use response::{Blocking, Call, End, Response, Whole};
pub use text::{self, Message, Part, Place};
pub use tools::{ToolChoice, ToolError, Tools};
pub use xla_session::{self, FinishReason, Precision};

//! Llama-family models, token by token, on compiled StableHLO graphs.
//!
//! The modules in reading order: what a session promises ([`session`]), the loops that drive any
//! session ([`mod@generate`]) with sampling ([`sample`]), where a step's time goes ([`profile`]),
//! a model's weights as small integers ([`quantise`]) and the products with packed weights
//! ([`kernels`]), and the engines behind the contract ([`backend`]). What a model is, and its files,
//! are the crate [`checkpoint`].

pub mod session;

pub mod generate;
pub mod profile;
pub mod sample;

pub mod cache;
pub mod emit;

pub mod kernels;
pub mod quantise;

pub mod backend;

#[cfg(feature = "candle")]
mod candle;
mod error;
#[cfg(feature = "iree")]
mod xla;

pub use backend::{
    Backend, Event, GraphsFor, KvFormat, Observer, Opened, Precision, SessionOptions,
    select_backend,
};
pub use checkpoint::{self, LoadMode, config};
pub use error::{Error, Result};
pub use generate::{
    FinishReason, GenerateOptions, Generation, Timings, generate, generate_greedy,
    generate_streaming_greedy,
};
pub use profile::{DispatchCost, Profile};
pub use session::{Capabilities, InferenceSession, Step};
#[cfg(feature = "iree")]
pub use xla::compile_ahead;

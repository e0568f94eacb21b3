//! Language models, token by token, on compiled StableHLO graphs.
//!
//! The modules in reading order: what a session promises ([`session`]), the loops that drive any
//! session ([`mod@generate`]) with sampling ([`sample`]), where a step's time goes ([`profile`]);
//! how weights are kept ([`precision`]) and a session is opened ([`opening`]); what graphs are written
//! with ([`emit`]), how each kind of device has them written ([`lower`]), and the cache of what is made
//! of them ([`cache`]); whose pages of the KV cache are whose ([`pages`]), which of them other processes find
//! ([`kv_share`]), and which requests run in the next step ([`scheduler`]); many sequences on one model
//! ([`engine`]), driven by the scheduler ([`batching`]), whose texts may also become vectors ([`pooling`]).
//!
//! What a model is, and its files, are the crate [`checkpoint`]; what the CPU computes with packed
//! weights is the crate [`kernels`].

#![warn(missing_debug_implementations)]

/// The programs of the README, which are compiled: run, they would fill the cache of whoever runs the tests.
#[cfg(all(doctest, feature = "iree"))]
#[doc = include_str!("../README.md")]
struct Readme;

pub mod session;

mod constraint;
pub mod generate;
pub mod profile;
pub mod sample;

pub mod opening;
pub mod precision;

pub mod cache;
pub mod emit;
pub mod lower;

pub mod kv_share;
pub mod pages;
pub mod scheduler;

pub mod engine;

pub mod batching;
pub mod pooling;

mod error;
#[cfg(feature = "iree")]
mod xla;

pub use batching::{Batcher, DraftCounts};
pub use checkpoint::{self, LoadMode, config};
pub use constraint::Constraint;
pub use engine::{Engine, EngineOptions, EngineSession, Model, Output, Run, Sequence, Want};
pub use error::{Error, Result};
pub use generate::{
    FinishReason, GenerateOptions, Generation, Timings, generate, generate_greedy,
    generate_streaming_greedy,
};
pub use kernels::{self, KvFormat, quantise};
pub use kv_share::KvShare;
pub use opening::{Event, Observer, Opened, SessionOptions, Tuning, open};
pub use pooling::Pooling;
pub use precision::Precision;
pub use profile::{DispatchCost, Profile};
pub use session::{Capabilities, InferenceSession, Step};
#[cfg(feature = "iree")]
pub use xla::compile_ahead;

//! Models behind the HTTP APIs that OpenAI's and Anthropic's clients speak.
//!
//! The modules in reading order: how a model is named and bounded, and the thread that steps it
//! ([`Model`]); what went through it, as numbers, and as spans; what a request may say and what is
//! answered when it says something else; the endpoints; the page, for people; by which names it may be called ([`Hosts`]),
//! who may call ([`Keys`]), how much ([`Limits`]), and how that stays between us ([`Certificate`]); all of it in OpenAPI's
//! words, and as a [`Router`] to mount, or as a [`Server`] that listens and stops well.
//!
//! **Threads.** Each model has one thread, its [`Worker`](xla_session::batching::Worker): requests reach it by a channel,
//! there it makes text of their tokens, and what comes of them goes back by one channel each. Whoever drops their end
//! has cancelled: the thread looks before every step. Nothing is locked but counts.

mod model;
mod requests;

mod metrics;
mod trace;
mod turns;

mod body;
mod error;
mod fields;
mod form;
mod lines;
mod sampling;
mod tools;

mod answer;
mod conversation;
mod openai;

mod chat;
mod completions;
mod cut;
mod embeddings;
mod infill;
mod messages;
mod models;
mod rerank;
mod responses;
mod tokens;

mod formulas;
mod markdown;
mod page;

mod hosts;
mod keys;
mod limits;
mod openapi;
mod outcome;
mod server;
mod tls;

pub use axum::Router;
pub use axum::http::HeaderMap;
pub use error::Error;
pub use hosts::Hosts;
pub use keys::Keys;
pub use limits::Limits;
pub use model::{Model, ModelOptions};
pub use server::{Server, ServerOptions};
pub use tls::Certificate;

pub(crate) use error::Problem;

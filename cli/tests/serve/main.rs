//! `iree-llm serve`: the program on a port of its own, and clients that behave and that do not.
#![cfg(all(feature = "iree", unix))]

#[path = "../support/mod.rs"]
mod support;

mod server;

mod agents;
mod answers;
mod clients;
mod conversations;
mod faults;
mod harmony;
mod infill;
mod limits;
mod openapi;
#[cfg(feature = "otel")]
mod otlp;
mod page;
mod rerank;
mod resumed;
#[cfg(target_os = "linux")]
mod soak;
mod tools;

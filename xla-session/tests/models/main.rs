//! Models: their tokens and bits on every device, in every precision and company. One program for all of it, as each
//! would link IREE and compile the fixtures for itself; `cargo test -p xla-session --test models engine::` runs a module.

mod fixtures;

// Needs no engine.
mod cache;
mod families;

#[cfg(feature = "iree")]
mod ahead;
#[cfg(feature = "iree")]
mod batching;
#[cfg(feature = "iree")]
mod bf16;
#[cfg(feature = "iree")]
mod convert;
#[cfg(feature = "iree")]
mod cuda;
#[cfg(feature = "iree")]
mod cuda_code;
#[cfg(feature = "iree")]
mod encoders;
#[cfg(feature = "iree")]
mod encodings;
#[cfg(feature = "iree")]
mod engine;
#[cfg(feature = "iree")]
mod gguf;
#[cfg(feature = "iree")]
mod invariance;
#[cfg(feature = "iree")]
mod kv_cache;
#[cfg(feature = "iree")]
mod kv_share;
#[cfg(feature = "iree")]
mod quantised;
#[cfg(feature = "iree")]
mod reference_model;
#[cfg(feature = "iree")]
mod smollm2;
#[cfg(feature = "iree")]
mod vulkan;
#[cfg(feature = "iree")]
mod weights;
#[cfg(feature = "iree")]
mod xla;

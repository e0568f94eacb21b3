//! The lowerings for NVIDIA GPUs: each concept of the model that is written differently there.
//!
//! A dispatch takes about two microseconds whatever it does, so concepts are fused: a decode step
//! applies a norm inside the product behind it, and gate and up projection are one loop nest.
//! Weights lie as in the checkpoint, row after row, and are widened where they are multiplied.
//! Nothing holds an `optimization_barrier`, which would split a command buffer in two.

mod attention;
mod kv_cache;
mod linear;
mod rope;
mod tiles;

pub use tiles::CudaTiles;

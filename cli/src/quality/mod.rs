//! How far the answers of a model are from those of the same model in float32: the tokens that
//! both are run on, what they say there, and what the differences come to.
//!
//! As in [`bench`](crate::bench), nothing here knows an engine.

pub mod contexts;
pub mod divergence;
pub mod greedy;
pub mod report;

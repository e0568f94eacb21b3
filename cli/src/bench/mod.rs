//! Measuring a session: what is run, on which tokens, and what the numbers come to.
//!
//! Nothing here knows an engine: it drives the [`InferenceSession`](xla_session::InferenceSession)
//! contract alone.

pub mod memory;
pub mod pass;
pub mod profile;
pub mod report;
pub mod spread;
pub mod table;

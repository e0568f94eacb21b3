//! Measuring a session: what is run, on which tokens, and what the numbers come to.
//!
//! One conversation is measured through the contract
//! [`InferenceSession`](xla_session::InferenceSession), which knows no engine; many at once
//! ([`parallel`], [`shared_prefix`]) through [`Engine`](xla_session::Engine).

#[cfg(feature = "iree")]
pub mod copy;
pub mod memory;
pub mod parallel;
pub mod pass;
pub mod profile;
pub mod report;
pub mod shared_prefix;
pub mod speculation;
pub mod spread;
pub mod table;

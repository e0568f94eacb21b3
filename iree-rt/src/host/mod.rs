//! What programs find outside of themselves: Rust functions, parameters, and who hears of traces.

pub(crate) mod native;
#[cfg(feature = "parameters")]
pub(crate) mod parameters;
pub(crate) mod trace;

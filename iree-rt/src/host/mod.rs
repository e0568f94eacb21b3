//! What programs find outside of themselves: Rust functions, parameters, and who hears of traces.

pub(crate) mod native;
pub(crate) mod parameters;
pub(crate) mod trace;

//! What makes programs.

pub(crate) mod compiler;

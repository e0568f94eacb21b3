//! What makes programs.

#[cfg(feature = "compiler")]
pub(crate) mod compiler;

//! IREE's CUDA driver, as far as opening and using its devices takes.

pub(crate) mod context;
pub(crate) mod driver_library;
pub(crate) mod open;
pub(crate) mod options;
pub(crate) mod uri;

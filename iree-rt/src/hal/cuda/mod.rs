//! IREE's CUDA driver, as far as opening and using its devices takes.

#[cfg(feature = "cuda")]
mod context;
#[cfg(feature = "cuda")]
mod driver_library;
#[cfg(not(feature = "cuda"))]
mod off;
#[cfg(feature = "cuda")]
mod open;
pub(crate) mod options;
pub(crate) mod uri;

#[cfg(feature = "cuda")]
pub(crate) use {
    context::Context,
    driver_library::{library, no_library},
    open::{not_built, open},
};

#[cfg(not(feature = "cuda"))]
pub(crate) use off::{Context, library, not_built, open};

//! Raw bindings of the IREE runtime C API, made by bindgen from `wrapper.h` for IREE 3.13.0.
//!
//! Names, types and rules are those of IREE's headers; nothing here is safe. [`inline`] holds
//! the `static inline` functions and macros of the headers, [`allocator`] the host allocator
//! that IREE allocates through. The safe API is the crate `iree-rt`.
//!
//! The build script links the runtime of an IREE folder (`cargo xtask fetch-iree` makes one):
//! `IREE_CUDA_HOME`, else `IREE_DIST`, else `iree/` in the target directory. Without one this
//! crate type-checks and documents, and a link fails naming the command to run.

pub mod allocator;
pub mod inline;

#[allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unsafe_op_in_unsafe_fn,
    unused,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    rustdoc::all
)]
mod bindings {
    #[cfg(not(feature = "bindgen"))]
    include!("bindings.rs");
    #[cfg(feature = "bindgen")]
    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
}

pub use bindings::*;
pub use inline::*;

/// The IREE version that the bindings are made for.
pub const IREE_VERSION: &str = "3.13.0";

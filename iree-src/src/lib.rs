#![doc = include_str!("../README.md")]

mod compiler;
mod cross;
mod error;
mod headers;
mod locate;
mod manifest;
mod parameters;
mod platform;

pub mod cmake;
pub mod mend;
pub mod prebuilt;
pub mod process;
pub mod runtime;
#[cfg(feature = "wheels")]
pub mod sha256;
pub mod sources;
pub mod wheel;

#[cfg(feature = "bundled")]
pub mod bundled;

pub use compiler::{Installed, install as install_compiler, part as compiler_part};
pub use cross::Cross;
pub use error::{Error, Result};
pub use locate::{CUDA_HOME_VAR, DIST_VAR, Located, Overrides, locate_from, locate_in_target};
pub use manifest::{
    Fetched, FileHash, MANIFEST, Manifest, Origin, OriginKind, Sanitizer, host_target,
};

/// The IREE version this workspace is written against.
pub const IREE_VERSION: &str = "3.13.0";

//! Brings IREE, and describes what was brought.
//!
//! An *IREE folder* holds the runtime's headers and static libraries, the compiler, and
//! `iree.json`, the [`Manifest`], which says what to compile against and what to link. Where the
//! folder came from (the sources inside a Cargo package, upstream's prebuilt archive, a checkout)
//! changes the data in the manifest, never the code that reads it.
//!
//! Without features this crate only finds and reads such folders, which is what a build script
//! needs. The feature `build` makes them ([`fetch`](fetch::fetch)), and `dist` adds the download
//! of prebuilt archives.

mod error;
mod locate;
mod manifest;
mod parameters;
mod prebuilt;
#[cfg(feature = "build")]
mod sha256;

#[cfg(feature = "build")]
pub mod check;
#[cfg(feature = "build")]
mod cuda;
#[cfg(feature = "dist")]
mod dist;
#[cfg(feature = "dist")]
mod download;
#[cfg(feature = "build")]
pub mod fetch;
#[cfg(feature = "build")]
mod headers;
#[cfg(feature = "build")]
mod mend;
#[cfg(feature = "build")]
mod place;
#[cfg(feature = "build")]
mod platform;
#[cfg(feature = "build")]
mod process;
#[cfg(feature = "build")]
pub mod progress;
#[cfg(feature = "build")]
mod registry;
#[cfg(feature = "build")]
pub mod request;
#[cfg(feature = "build")]
mod runtime;
#[cfg(feature = "build")]
mod source;
#[cfg(feature = "build")]
pub mod tools;
#[cfg(feature = "build")]
pub mod wheel;

pub use error::{Error, Result};
pub use locate::{CUDA_HOME_VAR, DIST_VAR, Located, Overrides, locate_from, locate_in_target};
pub use manifest::{Fetched, FileHash, MANIFEST, Manifest, Origin, OriginKind, Sanitizer};

/// The IREE version this workspace is written against.
pub const IREE_VERSION: &str = "3.13.0";

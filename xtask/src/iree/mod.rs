//! Makes IREE folders: runtime and compiler, from whatever origin, in one self-describing folder.
//!
//! How one is found and read, and how the runtime is built, is in the crate `iree-src`, which the
//! build scripts share.

pub mod check;
mod cross;
mod cuda;
#[cfg(feature = "dist")]
mod dist;
#[cfg(feature = "dist")]
mod download;
mod error;
pub mod fetch;
mod place;
pub mod progress;
pub mod request;
mod source;
pub mod tools;
mod wheel;

#[cfg(test)]
mod tests;

pub use error::{Error, Result};

/// The folder of the cache with the pinned compiler's wheel in it.
pub fn compiler_wheel(request: &request::Request) -> Result<std::path::PathBuf> {
    let wheel = iree_src::wheel::Wheel::find("iree-base-compiler", &request.target, "")?;
    let file = wheel::obtain(&wheel, request)?;
    Ok(file.parent().unwrap_or(&file).to_owned())
}

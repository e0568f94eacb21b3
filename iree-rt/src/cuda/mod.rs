//! GPUs of NVIDIA: what is there, what to compile for, and memory shared with `cudarc`.
//!
//! With the feature `cuda`, a runtime that was made by `cargo xtask fetch-iree --cuda` opens devices
//! of `cuda`; the build and the machine need no CUDA toolkit, only the machine needs NVIDIA's driver
//! (`libcuda.so`), which is looked for when a device is asked for. The feature also answers what
//! [`Gpu`] asks the driver, and exchanges memory with the crate `cudarc` 0.19
//! (`SharedSlice`, `BufferView::from_cuda`, `BufferView::to_cuda`). [`Target`] and [`Options`] are in
//! every build, and [`available`] says what is missing.
//!
//! No GPU has run this yet: what is tested is what works without one.

#[cfg(feature = "cuda")]
mod context;
mod gpu;
#[cfg(not(feature = "cuda"))]
mod off;
#[cfg(feature = "cuda")]
mod open;
mod options;
#[cfg(feature = "cuda")]
mod shared_slice;
mod target;

pub use gpu::Gpu;
#[cfg(not(feature = "cuda"))]
pub use off::available;
#[cfg(feature = "cuda")]
pub use open::available;
pub use options::{CommandBuffers, Options};
#[cfg(feature = "cuda")]
pub use shared_slice::SharedSlice;
pub use target::Target;

#[cfg(feature = "cuda")]
pub(crate) use context::Context;
#[cfg(not(feature = "cuda"))]
pub(crate) use off::{Context, open};
#[cfg(feature = "cuda")]
pub(crate) use open::open;

/// The name of IREE's driver, which begins the URIs of its devices.
pub(crate) const DRIVER: &str = "cuda";

/// What comes after the driver's name in a URI of CUDA: empty, a number or `GPU-…`.
pub(crate) fn path(uri: &str) -> Option<&str> {
    let rest = uri.strip_prefix(DRIVER)?;
    let path = if rest.is_empty() { rest } else { rest.strip_prefix("://")? };
    Some(path.split_once('?').map_or(path, |(path, _)| path))
}

#[cfg(test)]
mod tests {
    use super::path;

    #[test]
    fn uris_of_cuda_are_told_from_others() {
        for (uri, expected) in [
            ("cuda", Some("")),
            ("cuda://", Some("")),
            ("cuda://1", Some("1")),
            ("cuda://GPU-00?x=y", Some("GPU-00")),
            ("cudax", None),
            ("cuda:1", None),
            ("local-task", None),
        ] {
            assert_eq!(path(uri), expected, "{uri}");
        }
    }
}

//! IREE's Vulkan driver, and what Vulkan itself says of its devices.

#[cfg(feature = "vulkan")]
mod ask;
pub(crate) mod gpu;
#[cfg(not(feature = "vulkan"))]
mod off;

#[cfg(not(feature = "vulkan"))]
use off as ask;

use crate::base::error::{Code, Error};

/// The name of IREE's driver, which begins the URIs of its devices.
pub(crate) const DRIVER: &str = "vulkan";

/// What comes after the driver's name in a URI of Vulkan: empty, a number or `GPU-…`.
pub(crate) fn path(uri: &str) -> Option<&str> {
    let rest = uri.strip_prefix(DRIVER)?;
    let path = if rest.is_empty() { rest } else { rest.strip_prefix("://")? };
    Some(path.split_once('?').map_or(path, |(path, _)| path))
}

/// A runtime that was built without the driver.
pub(crate) fn not_built() -> Error {
    Error::new(
        Code::NotFound,
        "this program was built with an IREE runtime that has no Vulkan driver: make one that has with \
         `cargo xtask fetch-iree --vulkan`, and build again",
    )
}

#[cfg(test)]
mod tests {
    use super::path;

    #[test]
    fn uris_of_vulkan_are_told_from_others() {
        for (uri, expected) in [
            ("vulkan", Some("")),
            ("vulkan://", Some("")),
            ("vulkan://1", Some("1")),
            ("vulkan://GPU-00?x=y", Some("GPU-00")),
            ("vulkanx", None),
            ("vulkan:1", None),
            ("cuda", None),
        ] {
            assert_eq!(path(uri), expected, "{uri}");
        }
    }
}

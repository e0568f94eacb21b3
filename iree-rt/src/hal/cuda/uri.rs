//! URIs of CUDA's devices.

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

//! The platforms that pinned artifacts exist for.

/// The platform names that the pin table may use for `target`, the most specific first.
pub(crate) fn names(target: &str) -> &'static [&'static str] {
    let arch = target.split('-').next().unwrap_or_default();
    match (arch, target.contains("linux-gnu"), target.contains("apple-darwin")) {
        ("x86_64", true, _) => &["linux-x86_64"],
        ("aarch64", true, _) => &["linux-aarch64"],
        ("x86_64", _, true) => &["macos-x86_64", "macos"],
        ("aarch64", _, true) => &["macos-aarch64", "macos"],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::names;

    #[test]
    fn maps_triples() {
        assert_eq!(names("x86_64-unknown-linux-gnu"), ["linux-x86_64"]);
        assert_eq!(names("aarch64-apple-darwin"), ["macos-aarch64", "macos"]);
        assert!(names("riscv64gc-unknown-linux-gnu").is_empty());
        assert!(names("x86_64-unknown-linux-musl").is_empty());
    }
}

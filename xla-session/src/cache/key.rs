//! What a compiled graph depends on.

use std::fmt;

use sha2::{Digest, Sha256};

/// Everything that a compiled graph depends on.
#[derive(Debug, Clone, Copy)]
pub struct KeyParts<'a> {
    /// The graph as MLIR text.
    pub graph: &'a str,
    /// The compiler's flags, in order.
    pub flags: &'a [String],
    /// What code is generated for: the CPU's features, or the GPU's architecture.
    pub target: &'a str,
    /// Which build of the compiler.
    pub compiler: &'a str,
    /// Which version of the runtime will load it.
    pub runtime: &'a str,
}

/// The name of a cache entry: a SHA-256, as 64 hexadecimal digits.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(String);

impl Key {
    /// The key of a graph compiled from `parts`.
    pub fn new(parts: &KeyParts) -> Self {
        let KeyParts { graph, flags, target, compiler, runtime } = *parts;
        let mut hash = Sha256::new();
        // Each part with its length: no two different lists of parts run together the same way.
        let mut add = |part: &str| {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        };
        for part in [graph, target, compiler, runtime] {
            add(part);
        }
        for flag in flags {
            add(flag);
        }
        Self(format!("{:x}", hash.finalize()))
    }

    /// The key that a file name of the cache begins with, and the rest of the name.
    pub(super) fn split(file_name: &str) -> Option<(Self, &str)> {
        let (key, rest) = file_name.split_at_checked(64)?;
        let hex = key.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        hex.then(|| (Self(key.into()), rest))
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_counts() {
        let strings = |flags: &[&str]| flags.iter().map(|s| s.to_string()).collect::<Vec<_>>();
        let key = |graph, flags: &[&str], target, compiler, runtime| {
            let flags = strings(flags);
            Key::new(&KeyParts { graph, flags: &flags, target, compiler, runtime })
        };
        let base = key("g", &["-a", "-b"], "t", "c", "r");
        assert_eq!(base, key("g", &["-a", "-b"], "t", "c", "r"));
        let others = [
            key("G", &["-a", "-b"], "t", "c", "r"),
            key("g", &["-b", "-a"], "t", "c", "r"),
            key("g", &["-a-b"], "t", "c", "r"),
            key("g", &["-a"], "t", "c", "r"),
            key("g", &["-a", "-b"], "T", "c", "r"),
            key("g", &["-a", "-b"], "t", "C", "r"),
            key("g", &["-a", "-b"], "t", "c", "R"),
            key("gt", &["-a", "-b"], "", "c", "r"),
        ];
        for other in others {
            assert_ne!(base, other);
        }
    }

    #[test]
    fn splits_only_its_own_file_names() {
        let key =
            Key::new(&KeyParts { graph: "", flags: &[], target: "", compiler: "", runtime: "" });
        assert_eq!(Key::split(&format!("{key}.vmfb")), Some((key.clone(), ".vmfb")));
        assert_eq!(Key::split("readme.txt"), None);
        assert_eq!(Key::split(&format!("{}.vmfb", "G".repeat(64))), None);
        assert_eq!(Key::split(&format!("{}é", "0".repeat(63))), None);
    }
}

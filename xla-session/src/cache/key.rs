//! What an entry depends on.

use std::fmt;
use std::time::UNIX_EPOCH;

use sha2::{Digest, Sha256};

use checkpoint::FileStamp;

/// Everything that a compiled graph depends on.
#[derive(Debug, Clone, Copy)]
pub struct KeyParts<'a> {
    /// The graph as MLIR text.
    pub graph: &'a str,
    /// The compiler's flags, in order.
    pub flags: &'a [String],
    /// What it is compiled for: any CPU, one architecture, or a GPU's.
    pub target: &'a str,
    /// Which build of the compiler.
    pub compiler: &'a str,
    /// Which version of the runtime will load it.
    pub runtime: &'a str,
}

/// Everything that packed weights depend on.
///
/// Of the weights themselves samples are read for it. A checkpoint that changes goes unnoticed only if
/// its files keep their names, their sizes, their headers (the names, types and shapes of all
/// tensors), these samples, and the times of their last change, to the nanosecond where the file system has it.
#[derive(Debug, Clone, Copy)]
pub struct WeightsKeyParts<'a> {
    /// Which tensors lie where and how, in a form of the packer's own.
    pub image: &'a str,
    /// How quantised matrices are read, as `config.json` says it.
    pub encoding: Option<&'a str>,
    /// The checkpoint's files, each with the time of its last change.
    pub files: &'a [FileStamp],
}

/// The name of a cache entry: a SHA-256, as 64 hexadecimal digits.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(String);

impl Key {
    /// The key of a graph compiled from `parts`.
    pub fn new(parts: &KeyParts) -> Self {
        let KeyParts { graph, flags, target, compiler, runtime } = *parts;
        let flags = flags.iter().map(String::as_bytes);
        let parts = [graph, target, compiler, runtime].map(str::as_bytes);
        Self::of(parts.into_iter().chain(flags))
    }

    /// The key of weights packed from `parts`. The folder does not matter: a model that was moved
    /// is the same. `None` where the file system does not say when a file was changed.
    pub fn weights(parts: &WeightsKeyParts) -> Option<Self> {
        let mut all = vec![b"weights".to_vec(), parts.image.into()];
        all.extend(parts.encoding.map(Into::into));
        for file in parts.files {
            let modified = file.modified?.duration_since(UNIX_EPOCH).ok()?;
            all.push(file.path.file_name()?.as_encoded_bytes().to_vec());
            all.push(file.bytes.to_le_bytes().to_vec());
            all.push(modified.as_nanos().to_le_bytes().to_vec());
            all.push(file.contents.clone().into_bytes());
        }
        Some(Self::of(all.iter().map(Vec::as_slice)))
    }

    /// The key of a list of parts.
    pub(crate) fn of<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut hash = Sha256::new();
        // Each part with its length: no two different lists of parts run together the same way.
        for part in parts {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
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
    use std::time::Duration;

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
    fn every_stamp_counts_but_not_the_folder() {
        let stamp = FileStamp {
            path: "/models/a/model.safetensors".into(),
            bytes: 100,
            modified: Some(UNIX_EPOCH + Duration::from_nanos(1_700_000_000_123_456_789)),
            contents: "h".into(),
        };
        let encoded = |image, encoding, stamp: &FileStamp| {
            Key::weights(&WeightsKeyParts { image, encoding, files: std::slice::from_ref(stamp) })
        };
        let key = |image, stamp: &FileStamp| encoded(image, None, stamp);
        let base = key("i", &stamp).unwrap();
        let moved = FileStamp { path: "/elsewhere/model.safetensors".into(), ..stamp.clone() };
        assert_eq!(key("i", &moved), Some(base.clone()));
        let later = stamp.modified.map(|time| time + Duration::from_nanos(1));
        let others = [
            key("j", &stamp),
            key("i", &FileStamp { path: "/models/a/b.safetensors".into(), ..stamp.clone() }),
            key("i", &FileStamp { bytes: 101, ..stamp.clone() }),
            key("i", &FileStamp { modified: later, ..stamp.clone() }),
            key("i", &FileStamp { contents: "g".into(), ..stamp.clone() }),
            encoded("i", Some("e"), &stamp),
        ];
        for other in others {
            assert_ne!(other.unwrap(), base);
        }
        assert_eq!(key("i", &FileStamp { modified: None, ..stamp }), None);
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

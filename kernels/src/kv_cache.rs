//! What the KV cache consists of, wherever it is read or written.

use std::str::FromStr;

/// Tokens in one block of the KV cache.
pub const KV_BLOCK: usize = 64;

/// How the KV cache stores keys and values; what is computed with them is f32. Who keeps a cache
/// answers for each, so that the list is exhaustive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvFormat {
    /// As they were computed.
    F32,
    /// Rounded to IEEE half: half the memory, and less to read behind a long context. Each loses up
    /// to 1/2048 of itself (or 3e-8, if that is more); magnitudes above 65504 become infinite,
    /// which is an error, but of a key that no query looks towards.
    F16,
}

impl KvFormat {
    /// Every format, by the name it is chosen with.
    pub const ALL: [(&'static str, Self); 2] = [("f32", Self::F32), ("f16", Self::F16)];

    /// The name it is chosen with.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
        }
    }

    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
        }
    }
}

impl FromStr for KvFormat {
    type Err = UnknownKvFormat;

    fn from_str(value: &str) -> Result<Self, UnknownKvFormat> {
        let found = Self::ALL.iter().find(|(name, _)| *name == value);
        found.map(|(_, format)| *format).ok_or_else(|| UnknownKvFormat(value.into()))
    }
}

/// A name that no [`KvFormat`] has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown KV cache format `{0}`; known: {known}",
    known = KvFormat::ALL.map(|(name, _)| name).join(", ")
)]
pub struct UnknownKvFormat(String);

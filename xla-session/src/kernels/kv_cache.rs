//! What the KV cache consists of, wherever it is read or written.

/// Tokens in one block of the KV cache.
pub const KV_BLOCK: usize = 64;

/// How the KV cache stores keys and values; what is computed with them is f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
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

//! How a checkpoint is read.

use std::str::FromStr;

use crate::{Error, Result};

/// How a checkpoint is read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LoadMode {
    /// Memory-mapped: no copy, but a file that shrinks while it is open ends the process.
    #[default]
    Mmap,
    /// Read tensor by tensor: for files on a network drive, or that others may rewrite. Loading
    /// then needs as much memory more as the tensors of the largest matrix have bytes: those of all experts of a
    /// layer are one, as queries, keys and values are.
    Read,
    /// Not at all: weights are made up, by the shapes in `config.json`, which need be the only file
    /// of the model. For measuring how fast a shape runs.
    Random,
}

impl LoadMode {
    /// Every mode, by the name it is chosen with.
    pub const ALL: [(&'static str, Self); 3] =
        [("mmap", Self::Mmap), ("read", Self::Read), ("random", Self::Random)];
}

impl FromStr for LoadMode {
    type Err = Error;

    fn from_str(value: &str) -> Result<Self> {
        let found = Self::ALL.iter().find(|(name, _)| *name == value);
        found.map(|(_, mode)| *mode).ok_or_else(|| Error::UnknownLoadMode { value: value.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_mode_is_told_the_known_ones() {
        for (name, mode) in LoadMode::ALL {
            assert_eq!(name.parse::<LoadMode>().unwrap(), mode);
        }
        let error = "map".parse::<LoadMode>().unwrap_err().to_string();
        assert_eq!(error, "unknown load mode `map`; known: mmap, read, random");
    }
}

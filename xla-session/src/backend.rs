//! Choosing an engine at run time.

use std::path::Path;
use std::str::FromStr;

use crate::opening::{Opened, SessionOptions};
use crate::{Error, Result};

/// An engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Backend {
    /// Compiled StableHLO graphs on the IREE runtime.
    Iree,
    /// candle-transformers on the CPU.
    Candle,
}

impl Backend {
    /// Every engine, by the name it is chosen with, built in or not.
    pub const ALL: [(&'static str, Self); 2] = [("iree", Self::Iree), ("candle", Self::Candle)];

    /// Opens the model in `folder` (Hugging Face layout).
    ///
    /// # Errors
    ///
    /// A damaged or unsupported model, an unknown device, or an engine that is not built in.
    pub fn open(self, folder: &Path, options: &SessionOptions) -> Result<Opened> {
        match self {
            #[cfg(feature = "iree")]
            Self::Iree => crate::xla::open(folder, options),
            #[cfg(not(feature = "iree"))]
            Self::Iree => {
                let _ = (folder, options);
                Err(Error::Unsupported(
                    "built without iree: run `cargo xtask fetch-iree`, then build with the \
                     default features (feature `iree`)"
                        .into(),
                ))
            }
            #[cfg(feature = "candle")]
            Self::Candle => crate::candle::open(folder, options),
            #[cfg(not(feature = "candle"))]
            Self::Candle => Err(Error::Unsupported(
                "built without candle: build with `--features candle`".into(),
            )),
        }
    }
}

/// The engine called `name`.
///
/// # Errors
///
/// [`Error::Unknown`], which lists the known ones.
pub fn select_backend(name: &str) -> Result<Backend> {
    Error::by_name("backend", name, &Backend::ALL)
}

impl FromStr for Backend {
    type Err = Error;

    fn from_str(value: &str) -> Result<Self> {
        select_backend(value)
    }
}

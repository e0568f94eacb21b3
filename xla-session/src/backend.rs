//! What runs a model.

use std::path::Path;

use crate::Result;
use crate::opening::{Opened, SessionOptions};

/// An engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Backend {
    /// Compiled StableHLO graphs on the IREE runtime.
    Iree,
}

impl Backend {
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
                Err(crate::Error::Unsupported(
                    "built without iree: run `cargo xtask fetch-iree`, then build with the \
                     default features (feature `iree`)"
                        .into(),
                ))
            }
        }
    }
}

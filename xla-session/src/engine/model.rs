//! A model that engines share.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use checkpoint::config::ModelConfig;

use super::Loaded;
use crate::{Result, SessionOptions};

/// A model on a device: its weights, and the graphs that run it. A clone is another handle of it.
#[derive(Clone)]
pub struct Model {
    loaded: Arc<dyn Loaded>,
    opened: Opened,
}

/// What opening a model took.
#[derive(Debug, Clone, Copy)]
struct Opened {
    weights: u64,
    load: Duration,
    compile: Duration,
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model")
            .field("device", &self.device())
            .field("opened", &self.opened)
            .finish_non_exhaustive()
    }
}

impl Model {
    /// Opens the model `folder`: a folder in Hugging Face layout or with a GGUF file, or such a file itself.
    ///
    /// # Errors
    ///
    /// A damaged or unsupported model, an unknown device, no memory, or an engine that is not built in.
    pub fn open(folder: &Path, options: &SessionOptions) -> Result<Self> {
        #[cfg(feature = "iree")]
        return crate::xla::open_model(folder, options);
        #[cfg(not(feature = "iree"))]
        {
            let _ = (folder, options);
            Err(crate::Error::Unsupported(
                "built without iree: run `cargo xtask fetch-iree`, then build with the default \
                 features (feature `iree`)"
                    .into(),
            ))
        }
    }

    #[cfg(feature = "iree")]
    pub(crate) fn new(
        loaded: impl Loaded + 'static,
        weights: u64,
        load: Duration,
        compile: Duration,
    ) -> Self {
        Self { loaded: Arc::new(loaded), opened: Opened { weights, load, compile } }
    }

    pub(crate) fn loaded(&self) -> &dyn Loaded {
        &*self.loaded
    }

    /// What the model is.
    pub fn config(&self) -> &ModelConfig {
        self.loaded.config()
    }

    /// Where it runs, as the runtime names it: "local-task".
    pub fn device(&self) -> String {
        self.loaded.device()
    }

    /// Rows that a step has at most: what [`EngineOptions::rows`](super::EngineOptions::rows) is where nothing is said.
    pub fn most_rows(&self) -> usize {
        self.loaded.most_rows()
    }

    /// Bytes of a page of the KV cache, the keys and values of all layers together: what
    /// [`EngineOptions::kv_bytes`](super::EngineOptions::kv_bytes) is cut into.
    pub fn page_bytes(&self) -> usize {
        self.loaded.page_bytes()
    }

    /// Bytes of a sequence's state, of all layers that keep one together; 0 where none does. It is as large behind
    /// many tokens as behind one.
    pub fn state_bytes(&self) -> usize {
        self.loaded.state_bytes()
    }

    /// Bytes of weights in device memory; shared with other processes where they are mapped from the
    /// cache.
    pub fn weights(&self) -> u64 {
        self.opened.weights
    }

    /// How long reading, packing and uploading weights took, or mapping packed ones.
    pub fn load_time(&self) -> Duration {
        self.opened.load
    }

    /// How long compiling graphs took, or looking them up.
    pub fn compile_time(&self) -> Duration {
        self.opened.compile
    }
}

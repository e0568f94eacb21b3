//! How a session is opened: what is asked for, what is told meanwhile, and what comes of it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use checkpoint::LoadMode;
use kernels::{Isa, KvFormat};

use crate::{EngineSession, Error, InferenceSession, Model, Precision, Result};

/// Knobs of developers: no answer depends on them, but for the last bits of sums.
#[doc(hidden)]
#[derive(Debug, Clone)]
pub struct Tuning {
    /// The instructions of a CPU's kernels; `None` are the best that it has.
    pub isa: Option<Isa>,
    /// Whether floats are [compressed](kernels::compress) without loss.
    pub compress: bool,
    /// Whether there is a sketch beside an output projection of floats, which tells the most likely
    /// token with less than all logits; `None` is where the matrix is large enough to gain.
    pub sketch: Option<bool>,
    /// Whether the graphs and layouts of GPUs are used on a CPU: right, not fast, to check them.
    pub cuda_graphs: bool,
    /// The same of devices of Vulkan.
    pub vulkan_graphs: bool,
    /// Rows of the only graphs of GPUs but for one of prompts, 8 at least but for steps of at most 128 rows; `None` are all
    /// that there are.
    pub gpu_rows: Option<usize>,
}

#[cfg(feature = "iree")]
impl Tuning {
    /// The instruction set of kernels.
    ///
    /// # Errors
    ///
    /// This CPU, or its system, does not have the one that is asked for.
    pub(crate) fn isa_here(&self) -> Result<Isa> {
        self.isa.map_or_else(|| Ok(Isa::detect()), |isa| isa_here(isa.as_str()))
    }
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            isa: None,
            compress: true,
            sketch: None,
            cuda_graphs: false,
            vulkan_graphs: false,
            gpu_rows: None,
        }
    }
}

/// The instruction set called `name`, if this CPU has it.
fn isa_here(name: &str) -> Result<Isa> {
    let here: Vec<_> = Isa::all_here().into_iter().map(|isa| (isa.as_str(), isa)).collect();
    Error::by_name("instruction set", name, &here)
}

impl FromStr for Tuning {
    type Err = Error;

    /// "isa=avx2,compress=off,sketch=on,graphs=vulkan", or some of these.
    fn from_str(text: &str) -> Result<Self> {
        const SWITCH: [(&str, bool); 2] = [("on", true), ("off", false)];
        const KNOBS: [(&str, usize); 4] =
            [("isa", 0), ("compress", 1), ("sketch", 2), ("graphs", 3)];
        let mut tuning = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            match Error::by_name("tuning", name, &KNOBS)? {
                0 => tuning.isa = Some(isa_here(value)?),
                1 => tuning.compress = Error::by_name("compress", value, &SWITCH)?,
                2 => tuning.sketch = Some(Error::by_name("sketch", value, &SWITCH)?),
                _ => {
                    let kinds = [
                        ("cpu", (false, false)),
                        ("cuda", (true, false)),
                        ("vulkan", (false, true)),
                    ];
                    (tuning.cuda_graphs, tuning.vulkan_graphs) =
                        Error::by_name("graphs", value, &kinds)?;
                }
            }
        }
        Ok(tuning)
    }
}

/// What happens while a session is opened or grows; for progress bars.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// A graph is being compiled; it was not in the cache.
    Compiling {
        /// The graph: "model" on CPUs, "step_8", "prompt_256", "head_1" and the like on GPUs.
        graph: String,
    },
    /// That graph is ready.
    Compiled {
        /// The graph.
        graph: String,
        /// How long it took.
        took: Duration,
    },
    /// Weights are being packed into device memory.
    Loading {
        /// Bytes of the checkpoint that have been read.
        bytes: u64,
        /// Bytes to read in all.
        total: u64,
    },
    /// Packed weights were written to the cache, for later starts to map.
    WeightsKept {
        /// The file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
    },
    /// The cache could not take what was made for it: the next start makes it again.
    NotKept {
        /// "packed weights", "pages of the KV cache", or the graph, as [`Event::Compiling`] has it.
        what: String,
        /// Why.
        reason: String,
    },
}

/// Receives [`Event`]s, from any thread.
pub type Observer = Arc<dyn Fn(Event) + Send + Sync>;

/// How a session is opened. Give everything here: nothing is read from the environment but where a
/// compiler is, and that only where none is named.
#[derive(Clone)]
pub struct SessionOptions {
    /// The device, as the engine names it; `None` is the engine's default ("local-task").
    pub device: Option<String>,
    /// Worker threads, 1 to 64; `None` is one for each physical core, as far as there may be.
    pub threads: Option<usize>,
    /// How weights are kept.
    pub precision: Precision,
    /// How the KV cache stores keys and values; `None` is what goes with the precision
    /// ([`Precision::kv_cache`]). On GPUs it is f32.
    pub kv_cache: Option<KvFormat>,
    /// Most tokens the session will hold; `None` is the model's `max_position_embeddings`, or its original context
    /// where it rotates otherwise beyond that (LongRope, of Phi-3 for example). On CPUs
    /// memory follows the tokens in use, not this; on GPUs it is taken when the session is opened.
    pub context: Option<usize>,
    /// How the checkpoint is read.
    pub load_mode: LoadMode,
    /// The folder of the [`Cache`](crate::cache::Cache); `None` keeps compiled graphs and packed
    /// weights only in memory.
    pub cache_dir: Option<PathBuf>,
    /// Whether packed weights are kept in the cache too, for later starts to map and for all
    /// processes to share: takes as many bytes of disk as the weights have in memory. As with
    /// [`LoadMode::Mmap`], who shortens a file of the cache that is in use ends the process.
    pub weights_cache: bool,
    /// `iree-compile`; `None` looks for one as `iree_rt::Compiler::find` does: in the IREE folder of the
    /// build (debug builds and the feature `remember-folder` alone know it), in those that
    /// `IREE_CUDA_HOME` and `IREE_DIST` name, beside the program, and on the `PATH`.
    pub compiler: Option<PathBuf>,
    /// A file to be made, into which every dispatch is recorded; IREE's `iree-profile` opens it,
    /// and [`InferenceSession::take_profile`] adds it up. Steps take longer by what recording
    /// costs, and the device stays until the process ends.
    pub profile: Option<PathBuf>,
    /// What developers turn to compare.
    #[doc(hidden)]
    pub tuning: Tuning,
    /// Told about long work.
    pub observer: Option<Observer>,
}

impl Default for SessionOptions {
    /// Everything as the engine and the model have it; nothing is kept on disk before `cache_dir`
    /// is given, then compiled graphs and packed weights are.
    fn default() -> Self {
        Self {
            device: None,
            threads: None,
            precision: Precision::default(),
            kv_cache: None,
            context: None,
            load_mode: LoadMode::default(),
            cache_dir: None,
            weights_cache: true,
            compiler: None,
            profile: None,
            tuning: Tuning::default(),
            observer: None,
        }
    }
}

impl fmt::Debug for SessionOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionOptions")
            .field("device", &self.device)
            .field("threads", &self.threads)
            .field("precision", &self.precision)
            .field("kv_cache", &self.kv_cache)
            .field("context", &self.context)
            .field("load_mode", &self.load_mode)
            .field("cache_dir", &self.cache_dir)
            .field("weights_cache", &self.weights_cache)
            .field("compiler", &self.compiler)
            .field("profile", &self.profile)
            .finish_non_exhaustive()
    }
}

impl SessionOptions {
    /// The tokens that a session of a model will hold at most.
    #[cfg(feature = "iree")]
    pub(crate) fn context_of(&self, config: &checkpoint::config::ModelConfig) -> Result<usize> {
        let max = config.max_position_embeddings;
        match self.context {
            None => Ok(max),
            Some(context) if (1..=max).contains(&context) => Ok(context),
            Some(context) => Err(Error::Unsupported(format!(
                "a context of {context} tokens: this model takes 1 to {max}"
            ))),
        }
    }

    /// Refuses a KV cache that is not f32, for engines and devices that have no other.
    #[cfg(feature = "iree")]
    pub(crate) fn require_f32_cache(&self, of: &str) -> Result<()> {
        match self.kv_cache {
            None | Some(KvFormat::F32) => Ok(()),
            Some(format) => Err(Error::Unsupported(format!(
                "a KV cache in {}: {of} keeps it in f32",
                format.as_str()
            ))),
        }
    }

    /// Tells the observer, if there is one.
    pub fn notify(&self, event: Event) {
        if let Some(observer) = &self.observer {
            observer(event);
        }
    }
}

/// Opens the model `folder`, with a session on it: a folder in Hugging Face layout or with a GGUF file, or such a file itself.
///
/// # Errors
///
/// Those of [`Model::open`], and no memory for a context.
pub fn open(folder: &Path, options: &SessionOptions) -> Result<Opened> {
    let model = Model::open(folder, options)?;
    let session = Box::new(EngineSession::new(&model, options.context)?);
    let (weights, precision) = (model.weights(), options.precision);
    let (load, compile) = (model.load_time(), model.compile_time());
    Ok(Opened { session, model, precision, weights, load, compile })
}

/// An opened session and where the time went.
pub struct Opened {
    /// The session.
    pub session: Box<dyn InferenceSession>,
    /// The model that it shares with engines, which run many sequences at once.
    pub model: Model,
    /// How weights are kept.
    pub precision: Precision,
    /// Bytes of weights in device memory; shared with other processes where they are mapped from
    /// the cache.
    pub weights: u64,
    /// Reading, packing and uploading weights, or mapping packed ones.
    pub load: Duration,
    /// Compiling graphs; only looking them up when all were cached.
    pub compile: Duration,
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opened")
            .field("model", &self.model)
            .field("precision", &self.precision)
            .finish_non_exhaustive()
    }
}

//! Choosing an engine at run time.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

pub use crate::kernels::KvFormat;
use checkpoint::LoadMode;

use crate::{Error, InferenceSession, Result};

/// How weights lie in memory, and what activations they meet. Sums, norms and attention are
/// float32 in every case, over keys and values that are kept as [`Precision::kv_cache`] says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Precision {
    /// As the checkpoint stores them (bf16, f16 or f32), widened inside the compiled graph: the
    /// same arithmetic as [`F32`](Self::F32) at the checkpoint's size, or less where
    /// [compressed](SessionOptions::compress).
    #[default]
    Stored,
    /// Widened to float32 on upload.
    F32,
    /// Rounded to bfloat16 on upload, and activations before each product with them, as PyTorch and
    /// llama.cpp compute bf16 models: prompts take half the time on a CPU with AVX-512 BF16, at the
    /// same size as [`Stored`](Self::Stored) for a bf16 checkpoint. A token differs rarely.
    Bf16,
    /// Rounded to integers of 8 bits in groups of 32 with an f16 scale each, on upload: a token
    /// differs rarely.
    Int8,
    /// As [`Int8`](Self::Int8) with 4 bits; the token embedding and the output projection have 6, on
    /// GPUs 8. The least memory, and answers that differ.
    Int4,
}

impl Precision {
    /// Every precision, by the name it is chosen with.
    pub const ALL: [(&'static str, Self); 5] = [
        ("stored", Self::Stored),
        ("f32", Self::F32),
        ("bf16", Self::Bf16),
        ("int8", Self::Int8),
        ("int4", Self::Int4),
    ];

    /// The name it is chosen with.
    pub fn as_str(self) -> &'static str {
        Self::ALL.iter().find(|(_, p)| *p == self).map_or("", |(name, _)| name)
    }

    /// How the KV cache stores keys and values on CPUs unless told: rounded to f16, as llama.cpp
    /// has it, where the rest is rounded too, and exact where that is.
    pub fn kv_cache(self) -> KvFormat {
        match self {
            Self::Stored | Self::F32 => KvFormat::F32,
            Self::Bf16 | Self::Int8 | Self::Int4 => KvFormat::F16,
        }
    }
}

impl FromStr for KvFormat {
    type Err = Error;

    fn from_str(value: &str) -> Result<Self> {
        by_name("KV cache format", value, &Self::ALL)
    }
}

impl FromStr for Precision {
    type Err = Error;

    fn from_str(value: &str) -> Result<Self> {
        by_name("precision", value, &Self::ALL)
    }
}

/// A kind of device that there are graphs for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GraphsFor {
    /// CPUs.
    Cpu,
    /// NVIDIA GPUs.
    Cuda,
}

/// What happens while a session is opened or grows; for progress bars.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// A graph is being compiled; it was not in the cache.
    Compiling {
        /// The graph: "decode_step", "prefill_256".
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
        /// "packed weights", or the graph: "decode_step", "prefill_256".
        what: String,
        /// Why.
        reason: String,
    },
}

/// Receives [`Event`]s, from any thread.
pub type Observer = Arc<dyn Fn(Event) + Send + Sync>;

/// How a session is opened. The environment is not read: give everything here.
#[derive(Clone)]
pub struct SessionOptions {
    /// The device, as the engine names it; `None` is the engine's default ("local-task").
    pub device: Option<String>,
    /// Worker threads; `None` is one for each physical core.
    pub threads: Option<usize>,
    /// How weights are kept.
    pub precision: Precision,
    /// How the KV cache stores keys and values; `None` is what goes with the precision
    /// ([`Precision::kv_cache`]). On GPUs, and with candle, it is f32.
    pub kv_cache: Option<KvFormat>,
    /// Most tokens the session will hold; `None` is the model's `max_position_embeddings`. Memory
    /// follows the tokens in use, not this.
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
    /// Whether matrix products call this crate's [`kernels`](crate::kernels) or are generated by
    /// IREE; `None` calls kernels where there are some for this CPU's vectors.
    pub kernels: Option<bool>,
    /// Whether floats are [compressed](crate::kernels::compress) without loss where kernels read
    /// them: bf16 takes 12 bits, f32 28, and single tokens as much less time. Packing takes longer.
    pub compress: bool,
    /// Whether steps read only as much of an output projection as finds the most likely token, where
    /// kernels read it: of most rows the high four bits, or six of a sketch beside floats, tell that
    /// they are not the one. The token is that of all logits; who reads those says so
    /// ([`InferenceSession::want_logits`]). A sketch takes 6.5 bits a weight of memory. `None` is
    /// where the matrix is large enough to gain.
    pub split_output: Option<bool>,
    /// The kind of device whose graphs and layouts of weights are used; `None` is the device's own.
    /// Those of another kind run without that kind's tiles: right, not fast, to check what one
    /// device computes on another.
    pub graphs: Option<GraphsFor>,
    /// `iree-compile`; `None` takes the one in the IREE folder this was built with.
    pub compiler: Option<PathBuf>,
    /// A file to be made, into which every dispatch is recorded; IREE's `iree-profile` opens it,
    /// and [`InferenceSession::take_profile`] adds it up. Steps take longer by what recording
    /// costs, and the device stays until the process ends.
    pub profile: Option<PathBuf>,
    /// Steps in flight at most while [`InferenceSession::decode_greedy`] decodes; `None` is two, and
    /// one on `local-sync`. Each beyond the first hides what the host does between steps, and is one
    /// step too many at the end of an answer that the caller ends: the next call waits for it.
    pub ahead: Option<usize>,
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
            kernels: None,
            compress: true,
            split_output: None,
            graphs: None,
            compiler: None,
            profile: None,
            ahead: None,
            observer: None,
        }
    }
}

impl SessionOptions {
    /// The tokens that a session of a model will hold at most.
    #[cfg(any(feature = "iree", feature = "candle"))]
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
    #[cfg(any(feature = "iree", feature = "candle"))]
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

/// An opened session and where the time went.
pub struct Opened {
    /// The session.
    pub session: Box<dyn InferenceSession>,
    /// How weights are kept, which an engine may decide for itself.
    pub precision: Precision,
    /// Bytes of weights in device memory; shared with other processes where they are mapped from
    /// the cache.
    pub weights: u64,
    /// Reading, packing and uploading weights, or mapping packed ones.
    pub load: Duration,
    /// Compiling graphs; only looking them up when all were cached.
    pub compile: Duration,
}

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
    by_name("backend", name, &Backend::ALL)
}

impl FromStr for Backend {
    type Err = Error;

    fn from_str(value: &str) -> Result<Self> {
        select_backend(value)
    }
}

fn by_name<T: Copy>(what: &'static str, value: &str, all: &[(&str, T)]) -> Result<T> {
    all.iter().find(|(name, _)| *name == value).map(|(_, it)| *it).ok_or_else(|| Error::Unknown {
        what,
        value: value.into(),
        known: all.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", "),
    })
}

//! Flags that say which engine runs a model, where and how.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use xla_session::cache::Cache;
use xla_session::{
    Engine, EngineOptions, KvFormat, KvShare, LoadMode, Observer, Opened, Precision,
    SessionOptions, Tuning,
};

use crate::model_source::Model;
use crate::progress::Progress;

/// How a session is opened.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Engine")]
pub struct EngineArgs {
    #[command(flatten)]
    place: PlaceArgs,

    /// How weights lie in memory and are multiplied. stored: as in the files, arithmetic in f32,
    /// the reference's tokens. f32: the same at twice the size of bf16. bf16: activations rounded
    /// too, as PyTorch and llama.cpp do; faster prompts on a CPU with AVX-512 BF16, half the memory
    /// of an f32 model. int8, int4: five and three eighths of bf16's memory, faster still; int8
    /// answers rarely differ, int4's do (measure with `iree-llm quality`). w8a8: int8 whose layers
    /// round activations to 8 bits too; faster prompts and batches on a CPU with VNNI or AMX
    #[arg(long, env = "IREE_LLM_PRECISION", value_name = "NAME", default_value = "stored",
          value_parser = Precision::from_str)]
    precision: Precision,
}

/// How much many sequences may have in memory.
#[derive(Debug, Clone, Args)]
pub struct KvArgs {
    /// Memory for keys and values of each model, in MiB: with more, more and longer texts run at a time
    /// [default: 16 contexts, at most 2048]. Where layers keep states of sequences (Qwen3.5) a quarter of it is for
    /// these, and half of them bound how many requests run
    #[arg(long, env = "IREE_LLM_KV_MEMORY", value_name = "MIB",
          value_parser = clap::value_parser!(u64).range(1..=1 << 40))]
    kv_memory: Option<u64>,
}

/// How a session is opened, whatever the precision of its weights.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Engine")]
pub struct PlaceArgs {
    /// Device, as `iree-llm devices` lists them: local-task, local-sync, cuda://0, vulkan://0, …
    /// [default: the engine's own, all cores of the CPU]
    #[arg(long, env = "IREE_LLM_DEVICE", value_name = "URI")]
    device: Option<String>,

    /// Worker threads, 64 at most [default: one for each physical core]
    #[arg(long, env = "IREE_LLM_THREADS", value_name = "N", value_parser = positive)]
    threads: Option<usize>,

    /// Most tokens of prompt and answer together [default: what the model allows]
    #[arg(long, env = "IREE_LLM_CONTEXT", value_name = "TOKENS", value_parser = positive)]
    context: Option<usize>,

    /// How the KV cache keeps keys and values on a CPU: f32, or f16, half the memory, rounded
    /// [default: f32 with stored and f32, and on GPUs, else f16]
    #[arg(long, env = "IREE_LLM_KV_CACHE", value_name = "TYPE", value_parser = KvFormat::from_str)]
    kv_cache: Option<KvFormat>,

    /// How weights are read: mmap, read (for files on a network drive or that others rewrite), or
    /// random: not at all, but made up by the shapes in config.json, to see how fast they run
    #[arg(long, env = "IREE_LLM_LOAD_MODE", value_name = "NAME", default_value = "mmap",
          value_parser = LoadMode::from_str)]
    load_mode: LoadMode,

    /// Keep no packed weights in the cache: saves as much disk as the weights have in memory, but
    /// every start packs them again (4 to 9 s for a billion), and processes share none of them
    #[arg(long, env = "IREE_LLM_NO_WEIGHTS_CACHE", action = clap::ArgAction::SetTrue,
          value_parser = clap::builder::FalseyValueParser::new())]
    no_weights_cache: bool,

    /// Compile and pack without looking at the cache, and keep nothing
    #[arg(long, env = "IREE_LLM_NO_CACHE", value_parser = clap::builder::FalseyValueParser::new(),
          action = clap::ArgAction::SetTrue)]
    no_cache: bool,

    /// Knobs of developers, to compare: isa=NAME, compress=on|off, sketch=on|off, graphs=cpu|cuda|vulkan
    #[arg(long, env = "IREE_LLM_TUNING", value_name = "NAME=VALUE,…", default_value = "", hide = true,
          value_parser = Tuning::from_str)]
    tuning: Tuning,

    #[command(flatten)]
    compile: CompileArgs,
}

/// How graphs are compiled and kept.
#[derive(Debug, Clone, Args)]
pub struct CompileArgs {
    #[command(flatten)]
    pub cache: CacheArgs,

    /// The iree-compile program [default: the one that came with the program, that `iree-llm fetch
    /// compiler` has brought, or on the PATH]
    #[arg(long, env = "IREE_LLM_IREE_COMPILE", value_name = "PROGRAM")]
    iree_compile: Option<PathBuf>,
}

impl CompileArgs {
    /// The compiler that the engine will use.
    ///
    /// # Errors
    ///
    /// There is none, or it does not run; with what to do about it.
    #[cfg(feature = "iree")]
    pub fn compiler(&self) -> Result<iree_rt::Compiler, (iree_rt::Error, &'static str)> {
        let program = self.compiler_program();
        let named = program.is_some();
        let found = program.map_or_else(iree_rt::Compiler::find, iree_rt::Compiler::process);
        found.map_err(|error| {
            let fix = crate::compiler::fix(&error, named);
            (error, fix)
        })
    }

    /// The compiler that was named, or that came with the program, or was fetched for it.
    pub fn compiler_program(&self) -> Option<PathBuf> {
        let named = self.iree_compile.clone();
        #[cfg(feature = "iree")]
        return named.or_else(crate::compiler::installed);
        #[cfg(not(feature = "iree"))]
        named
    }
}

/// Where compiled graphs and packed weights are kept.
#[derive(Debug, Clone, Args)]
pub struct CacheArgs {
    /// Folder of compiled graphs and packed weights [default: iree-llm in the user's cache folder].
    /// The variable moves smollm2, which `iree-llm pull` brings, too; the flag does not
    #[arg(long, env = "IREE_LLM_CACHE_DIR", value_name = "FOLDER", global = true)]
    cache_dir: Option<PathBuf>,
}

/// What a command of IREE's says in a build that lacks it.
#[cfg(not(feature = "iree"))]
pub const WITHOUT_IREE: &str = "built without iree: build it with the default features";

fn positive(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("must be at least 1".into()),
        Ok(n) => Ok(n),
        Err(error) => Err(format!("{error}")),
    }
}

impl CacheArgs {
    /// The folder, if there is a place for one.
    pub fn folder(&self) -> Option<PathBuf> {
        self.cache_dir.clone().or_else(Cache::default_folder)
    }
}

impl EngineArgs {
    /// How weights are read.
    pub fn load_mode(&self) -> LoadMode {
        self.place.load_mode
    }

    /// Opens `model`.
    ///
    /// # Errors
    ///
    /// Those of [`xla_session::open`].
    pub fn open(&self, model: &Model, progress: &Arc<Progress>) -> Result<Opened> {
        let opened = self.place.open(model, self.precision, None, progress.observer())?;
        progress.finish();
        Ok(opened)
    }

    /// How weights lie in memory.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// Opens `model` for one sequence, or for many at once, whose keys and values take what `kv` says at most, and are kept
    /// for other processes in `share`, if that is given.
    ///
    /// # Errors
    ///
    /// Those of [`PlaceArgs::open_model`] and of [`Engine::new`].
    pub fn open_engine(
        &self,
        model: &Model,
        kv: Option<&KvArgs>,
        share: Option<KvShare>,
        progress: &Arc<Progress>,
    ) -> Result<Engine> {
        let model = self.place.open_model(model, self.precision, progress.observer())?;
        progress.finish();
        let mut options = EngineOptions::default();
        options.context = self.place.context;
        options.share = share;
        if let Some(kv) = kv {
            options.kv_bytes = kv.kv_memory.map(|mib| mib << 20);
            options = options.with_usual_room(&model);
        }
        Ok(Engine::new(&model, &options)?)
    }

    /// Opens `model` to draft for another one, with weights in `precision`.
    ///
    /// # Errors
    ///
    /// Those of [`PlaceArgs::open_model`].
    pub fn open_draft(
        &self,
        model: &Model,
        precision: Precision,
        progress: &Arc<Progress>,
    ) -> Result<xla_session::Model> {
        // Its context is its own, and its cache what goes with its precision.
        let place = PlaceArgs { context: None, kv_cache: None, ..self.place.clone() };
        let model = place.open_model(model, precision, progress.observer())?;
        progress.finish();
        Ok(model)
    }
}

impl PlaceArgs {
    /// The same with the KV cache that goes with each precision.
    pub fn with_default_kv_cache(&self) -> Self {
        Self { kv_cache: None, ..self.clone() }
    }

    /// Most tokens of a sequence, if a number was asked for.
    pub fn context(&self) -> Option<usize> {
        self.context
    }

    /// How weights are read.
    pub fn load_mode(&self) -> LoadMode {
        self.load_mode
    }

    /// Worker threads, if a number was asked for.
    pub fn threads(&self) -> Option<usize> {
        self.threads
    }

    /// Opens `model` with weights in `precision`, recording every dispatch into the file `profile`
    /// if there is one.
    ///
    /// # Errors
    ///
    /// Those of [`xla_session::open`].
    pub fn open(
        &self,
        model: &Model,
        precision: Precision,
        profile: Option<PathBuf>,
        observer: Observer,
    ) -> xla_session::Result<Opened> {
        let options = self.session_options(precision, profile, observer);
        xla_session::open(&model.folder, &options)
    }

    /// Opens `model` with weights in `precision` for engines, which run many sequences at once.
    ///
    /// # Errors
    ///
    /// Those of [`Model::open`](xla_session::Model::open).
    pub fn open_model(
        &self,
        model: &Model,
        precision: Precision,
        observer: Observer,
    ) -> xla_session::Result<xla_session::Model> {
        let options = self.session_options(precision, None, observer);
        xla_session::Model::open(&model.folder, &options)
    }

    fn session_options(
        &self,
        precision: Precision,
        profile: Option<PathBuf>,
        observer: Observer,
    ) -> SessionOptions {
        SessionOptions {
            device: self.device.clone(),
            threads: self.threads,
            precision,
            kv_cache: self.kv_cache,
            context: self.context,
            load_mode: self.load_mode,
            cache_dir: if self.no_cache { None } else { self.compile.cache.folder() },
            weights_cache: !self.no_weights_cache,
            compiler: self.compile.compiler_program(),
            profile,
            tuning: self.tuning.clone(),
            observer: Some(observer),
        }
    }
}

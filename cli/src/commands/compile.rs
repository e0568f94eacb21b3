//! `iree-llm compile`: graphs for machines that have no compiler.

use std::process::ExitCode;

use anyhow::Result;
use xla_session::{KvFormat, LoadMode, Precision};

use crate::engine::CompileArgs;
use crate::model_source::ModelArgs;

/// What to compile, and for what.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  iree-llm compile -m ./Llama-3.2-1B --target cpu --precision int4 --cache-dir graphs
  iree-llm generate -m ./Llama-3.2-1B --precision int4 --cache-dir graphs     (over there)
  iree-llm compile -m ./Llama-3.2-1B --target sm_89,sm_80 --cache-dir graphs
  iree-llm generate -m ./Llama-3.2-1B --cache-dir graphs --device cuda        (over there)

Neither such a machine nor the weights are needed here: with --load-mode random a config.json is enough. \
Over there no compiler is looked for as long as the folder holds what a command needs: the same precision \
and KV cache. Graphs for CPUs are for any: they call kernels, which are in the program. \
A GPU runs the newest that is not newer than itself: sm_89 on an H100, H200 or B200, sm_80 on an A100.")]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,

    /// cpu, and GPU architectures (sm_80, …)
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', required = true)]
    target: Vec<String>,

    /// How weights will lie in memory: stored, f32, bf16, int8, w8a8, int4
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', default_value = "stored",
          value_parser = <Precision as std::str::FromStr>::from_str)]
    precision: Vec<Precision>,

    /// How weights will be read; random takes their type from config.json
    #[arg(long, value_name = "NAME", default_value = "mmap",
          value_parser = <LoadMode as std::str::FromStr>::from_str)]
    load_mode: LoadMode,

    /// How the KV cache keeps keys and values on a CPU: f32, or f16 [default: what goes with the precision]
    #[arg(long, value_name = "TYPE", value_parser = <KvFormat as std::str::FromStr>::from_str)]
    kv_cache: Option<KvFormat>,

    #[command(flatten)]
    compile: CompileArgs,
}

impl Args {
    /// Compiles.
    #[cfg(feature = "iree")]
    pub fn run(self) -> Result<ExitCode> {
        use std::io::Write;

        use anyhow::Context;
        use xla_session::SessionOptions;
        use xla_session::cache::Label;
        use xla_session::checkpoint::Checkpoint;
        use xla_session::emit::WeightFormats;

        use crate::progress::Progress;

        let progress = Progress::new(false);
        let model = self.model.locate_for(self.load_mode, &progress)?;
        let (checkpoint, config) = Checkpoint::open_with_config(&model.folder, self.load_mode)?;
        let config = config.with_context(None);
        let cache_dir = self.compile.cache.folder();
        let folder = cache_dir.clone().context("no cache folder: give --cache-dir")?;
        let mut options = SessionOptions {
            cache_dir,
            kv_cache: self.kv_cache,
            compiler: self.compile.compiler_program(),
            observer: Some(progress.observer()),
            ..SessionOptions::default()
        };
        let label = Label::model_of(&model.folder);
        let mut count = 0;
        for &precision in &self.precision {
            options.precision = precision;
            let formats = WeightFormats::new(precision, &config, &checkpoint);
            for target in &self.target {
                count += xla_session::compile_ahead(&config, &formats, target, &label, &options)?;
            }
        }
        progress.finish();
        writeln!(std::io::stdout(), "{count} graphs in {}", folder.display())?;
        Ok(ExitCode::SUCCESS)
    }

    /// Says why it cannot.
    #[cfg(not(feature = "iree"))]
    pub fn run(self) -> Result<ExitCode> {
        let _ = (self.model, self.target, self.precision, self.load_mode);
        let _ = (self.kv_cache, self.compile);
        anyhow::bail!(crate::engine::WITHOUT_IREE)
    }
}

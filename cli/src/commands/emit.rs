//! `iree-llm emit`: write the graphs of a model as StableHLO text.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use xla_session::checkpoint::Checkpoint;
use xla_session::emit::{KV_BLOCK, WeightFormats};
use xla_session::kernels::Isa;
use xla_session::lower::cpu::{self, CpuTarget};
use xla_session::lower::portable;
use xla_session::{KvFormat, LoadMode, Precision};

use crate::model_source::ModelArgs;
use crate::progress::Progress;

/// What to write and where.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  iree-llm emit graphs                             what the IREE engine compiles
  iree-llm emit --portable graphs --context 1024   for any StableHLO compiler
  iree-llm emit --portable graphs --rows 1

The folder gets model.mlir, which runs steps of up to 256 rows on CPUs and calls this program's own \
kernels. With --portable it gets decode_step.mlir, prefill_<rows>.mlir, and arguments.json, which says \
where each argument comes from and what each result is, and rope.safetensors, the rotary tables.")]
pub struct Args {
    /// Folder to write to; made if need be
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,

    #[command(flatten)]
    model: ModelArgs,

    /// Plain StableHLO with static shapes, without anything of IREE's
    #[arg(long)]
    portable: bool,

    /// Tokens of one call of portable graphs, a graph for each: 1 decodes, more prefill [default:
    /// 1,8,64,256, as far as the context holds them]
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = rows,
          requires = "portable")]
    rows: Vec<usize>,

    /// Tokens that the cache of portable graphs holds [default: what the model allows, at most
    /// 2048]
    #[arg(long, value_name = "TOKENS", requires = "portable")]
    context: Option<usize>,

    /// How weights enter: stored (as in the files), f32, bf16 (activations rounded too), int8,
    /// w8a8, int4
    #[arg(long, env = "IREE_LLM_PRECISION", value_name = "NAME", default_value = "stored",
          value_parser = <Precision as std::str::FromStr>::from_str)]
    precision: Precision,

    /// How the KV cache keeps keys and values: f32 or f16; portable graphs have f32 [default: f32
    /// with stored and f32, else f16]
    #[arg(long, env = "IREE_LLM_KV_CACHE", value_name = "TYPE",
          value_parser = <KvFormat as std::str::FromStr>::from_str)]
    kv_cache: Option<KvFormat>,
}

/// Most tokens that portable graphs hold unless told: they always compute over all of them.
const PORTABLE_CONTEXT: usize = 2048;

/// Rows of portable graphs unless told.
const ROWS: [usize; 4] = [1, 8, 64, 256];

impl Args {
    /// Writes.
    pub fn run(self) -> Result<ExitCode> {
        let model = self.model.locate(&Progress::new(false))?;
        let (checkpoint, config) = Checkpoint::open_with_config(&model.folder, LoadMode::Mmap)?;
        let config = config.with_context(self.context);

        let most = config.max_position_embeddings;
        let capacity = self.context.unwrap_or(most.min(PORTABLE_CONTEXT));
        ensure!(
            (1..=most).contains(&capacity),
            "--context {capacity}: the model allows 1 to {most} tokens"
        );
        ensure!(
            !self.portable
                || !matches!(self.precision, Precision::Int8 | Precision::W8a8 | Precision::Int4),
            "--portable --precision {}: plain StableHLO has no such weights; take stored, f32 or bf16",
            self.precision.as_str(),
        );
        let formats = WeightFormats::new(self.precision, &config, &checkpoint);
        if !self.portable {
            // As many as the engine takes, whose graph it is.
            #[cfg(feature = "iree")]
            let threads = iree_rt::default_workers();
            #[cfg(not(feature = "iree"))]
            let threads = std::thread::available_parallelism().map_or(1, usize::from);
            let kv_cache = self.kv_cache.unwrap_or(self.precision.kv_cache());
            let target = CpuTarget::new(Isa::detect(), threads).with_kv_cache(kv_cache);
            let rows = cpu::most_rows(&config);
            cpu::supports(&config, rows, 64).map_err(anyhow::Error::msg)?;
            let program = cpu::program(&config, &formats, &target, rows, 64);
            let path = self.folder.join("model.mlir");
            std::fs::create_dir_all(&self.folder)
                .and_then(|()| std::fs::write(&path, program.text))
                .with_context(|| format!("writing {}", path.display()))?;
            return Ok(ExitCode::SUCCESS);
        }
        if let Some(rows) = self.rows.iter().find(|&&rows| rows > capacity) {
            bail!("--rows {rows}: more than the context of {capacity} tokens");
        }
        let rows = match self.rows.is_empty() {
            true => ROWS.into_iter().filter(|rows| *rows <= capacity).collect(),
            false => self.rows,
        };
        portable::supports(&config).map_err(anyhow::Error::msg)?;
        let graph = |&rows: &usize| portable::emit(&config, &formats, capacity, rows);
        let graphs: Vec<_> = rows.iter().map(graph).collect();
        portable::export(&self.folder, &config, &graphs, capacity)?;
        Ok(ExitCode::SUCCESS)
    }
}

fn rows(text: &str) -> Result<usize, String> {
    match text.trim().parse() {
        Ok(rows @ (1 | 8 | 16 | 32 | 64)) => Ok(rows),
        Ok(rows) if rows > 0 && rows % KV_BLOCK == 0 && rows <= 1 << 14 => Ok(rows),
        _ => Err(format!("`{text}`: give 1, 8, 16, 32, or a multiple of {KV_BLOCK} to 16384")),
    }
}

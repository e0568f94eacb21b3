//! `iree-llm emit`: write the graphs of a model as StableHLO text.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use safetensors::tensor::TensorView;
use serde_json::{Value, json};
use xla_session::LoadMode;
use xla_session::Precision;
use xla_session::checkpoint::{Checkpoint, Dtype};
use xla_session::config::ModelConfig;
use xla_session::emit::builder::{DYNAMIC, TensorType};
use xla_session::emit::{
    self, CpuTiles, ElementType, Graph, KV_BLOCK, Layout, Source, Target, WeightTypes,
};

use crate::model_source::ModelArgs;
use crate::progress::Progress;

/// What to write and where.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  iree-llm emit graphs                             what the IREE engine compiles
  iree-llm emit graphs -m ./Llama-3.2-1B --rows 1
  iree-llm emit --portable graphs --context 1024   for any StableHLO compiler

The folder gets decode_step.mlir, prefill_<rows>.mlir, and arguments.json, which says where each
argument comes from and what each result is; with --portable also rope.safetensors, the rotary
tables.")]
pub struct Args {
    /// Folder to write to; made if need be
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,

    #[command(flatten)]
    model: ModelArgs,

    /// Plain StableHLO with static shapes, without anything of IREE's
    #[arg(long)]
    portable: bool,

    /// Tokens of one call, a graph for each: 1 decodes, more prefill
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values_t = [1, 8, 32, 256],
          value_parser = rows)]
    rows: Vec<usize>,

    /// Tokens that the cache of portable graphs holds [default: what the model allows, at most
    /// 2048]
    #[arg(long, value_name = "TOKENS", requires = "portable")]
    context: Option<usize>,

    /// How weights enter: stored (as in the files), f32
    #[arg(long, env = "IREE_LLM_PRECISION", value_name = "NAME", default_value = "stored",
          value_parser = <Precision as std::str::FromStr>::from_str)]
    precision: Precision,
}

/// Most tokens that portable graphs hold unless told: they always compute over all of them.
const PORTABLE_CONTEXT: usize = 2048;

impl Args {
    /// Writes.
    pub fn run(self) -> Result<ExitCode> {
        let model = self.model.locate(&Progress::new(false))?;
        let mut config = ModelConfig::from_dir(&model.folder)?;
        let checkpoint = Checkpoint::open(&model.folder, LoadMode::Mmap)?;
        config.tie_word_embeddings = checkpoint.is_tied(&config)?;
        checkpoint.check(&config)?;

        let most = config.max_position_embeddings;
        let capacity = self.context.unwrap_or(most.min(PORTABLE_CONTEXT));
        ensure!(
            (1..=most).contains(&capacity),
            "--context {capacity}: the model allows 1 to {most} tokens"
        );
        let target = match self.portable {
            true => Target::Portable { capacity },
            false => Target::Cpu(CpuTiles::default()),
        };
        let types = weight_types(&config, &checkpoint, self.precision)?;
        fs::create_dir_all(&self.folder).with_context(|| self.folder.display().to_string())?;
        let mut graphs = Vec::new();
        for rows in self.rows {
            ensure!(
                !self.portable || rows <= capacity,
                "--rows {rows}: more than the context of {capacity} tokens"
            );
            let graph = emit::emit(&config, &types, &target, rows);
            write(&self.folder.join(format!("{}.mlir", graph.name)), graph.text.as_bytes())?;
            graphs.push(describe(&graph));
        }
        let mut described = json!({ "graphs": graphs });
        if self.portable {
            described["capacity"] = json!(capacity);
            write_rope(&self.folder.join("rope.safetensors"), &config, capacity)?;
        }
        let text = serde_json::to_string_pretty(&described)? + "\n";
        write(&self.folder.join("arguments.json"), text.as_bytes())?;
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

/// The element type of every matrix: the file's, or f32.
fn weight_types(
    config: &ModelConfig,
    checkpoint: &Checkpoint,
    precision: Precision,
) -> Result<WeightTypes> {
    let mut types = WeightTypes::all(ElementType::F32);
    if precision == Precision::Stored {
        for tensor in config.tensors() {
            let element = match checkpoint.get(&tensor)?.dtype() {
                Dtype::F32 => ElementType::F32,
                Dtype::F16 => ElementType::F16,
                Dtype::BF16 => ElementType::Bf16,
                other => bail!("{}: no graphs for {}", tensor.name, other.as_str()),
            };
            types.exceptions.insert(tensor.name, element);
        }
    }
    Ok(types)
}

fn describe(graph: &Graph) -> Value {
    let arguments = graph.arguments.iter().map(|argument| {
        let mut described = typed("source", &source(&argument.source), &argument.ty);
        if let Source::Weight(spec) = &argument.source {
            let parts = spec.parts.iter().map(|(name, rows)| json!({"tensor": name, "rows": rows}));
            described["parts"] = parts.collect();
            if let Layout::Packed { lanes } = spec.layout {
                described["lanes"] = json!(lanes);
            }
        }
        described
    });
    // Keys and values come back in the order in which they go in: layer by layer.
    let layers = (graph.results.len() - 2) / 2;
    let cache = (0..layers).flat_map(|i| [format!("keys.{i}"), format!("values.{i}")]);
    let names = ["token".to_owned(), "logits".to_owned()].into_iter().chain(cache);
    let results = names.zip(&graph.results).map(|(name, ty)| typed("name", &name, ty));
    json!({
        "file": format!("{}.mlir", graph.name),
        "name": graph.name,
        "rows": graph.rows,
        "arguments": arguments.collect::<Value>(),
        "results": results.collect::<Value>(),
    })
}

fn typed(key: &str, name: &str, ty: &TensorType) -> Value {
    // Extents that are known only at run time are null.
    let shape = ty.dims.iter().map(|&dim| (dim != DYNAMIC).then_some(dim));
    json!({ key: name, "shape": shape.collect::<Vec<_>>(), "dtype": ty.element.as_str() })
}

fn source(source: &Source) -> String {
    match source {
        Source::Tokens => "tokens".into(),
        Source::Start => "start".into(),
        Source::Last => "last".into(),
        Source::RopeCos => "rope.cos".into(),
        Source::RopeSin => "rope.sin".into(),
        Source::Keys(layer) => format!("keys.{layer}"),
        Source::Values(layer) => format!("values.{layer}"),
        Source::Weight(spec) => {
            spec.parts.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join("+")
        }
    }
}

fn write_rope(path: &Path, config: &ModelConfig, positions: usize) -> Result<()> {
    let tables = config.rope_tables(0..positions);
    let shape = vec![positions, config.head_dim / 2];
    let bytes = |table: &[f32]| table.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let (cos, sin) = (bytes(&tables.cos), bytes(&tables.sin));
    let views = [
        ("rope.cos", TensorView::new(safetensors::Dtype::F32, shape.clone(), &cos)?),
        ("rope.sin", TensorView::new(safetensors::Dtype::F32, shape, &sin)?),
    ];
    write(path, &safetensors::serialize(views, None)?)
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(path, bytes).with_context(|| path.display().to_string())
}

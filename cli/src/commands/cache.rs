//! `iree-llm cache`: look after the cache of compiled graphs.

use std::io::Write;
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::{Context, Result};
use clap::Subcommand;
use indicatif::{BinaryBytes, HumanDuration};
use xla_session::cache::Cache;

use crate::engine::CacheArgs;

/// What to do with it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  iree-llm cache list
  iree-llm cache clear
  rm -r \"$(iree-llm cache path)\"

Clearing is safe: what is missing is compiled again when it is needed.")]
pub struct Args {
    #[command(subcommand)]
    action: Action,

    #[command(flatten)]
    cache: CacheArgs,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the graphs: size, last use, graph, model, key
    List,
    /// Print the folder
    Path,
    /// Remove every graph
    Clear,
}

impl Args {
    /// Does it.
    pub fn run(self) -> Result<ExitCode> {
        let folder = self.cache.folder().context(
            "no folder for the cache: you have no home folder; give one with --cache-dir",
        )?;
        let mut out = String::new();
        match self.action {
            Action::Path => out = format!("{}\n", folder.display()),
            Action::List if !folder.exists() => {}
            Action::List => {
                let now = SystemTime::now();
                for entry in Cache::open(folder)?.entries()? {
                    let unused = now.duration_since(entry.last_used).unwrap_or_default();
                    out += &format!(
                        "{:>11}  {:>10} ago  {:<16} {:<24} {:.12}\n",
                        BinaryBytes(entry.bytes).to_string(),
                        HumanDuration(unused).to_string(),
                        entry.label.graph,
                        entry.label.model,
                        entry.key.to_string(),
                    );
                }
            }
            Action::Clear if !folder.exists() => {}
            Action::Clear => {
                let freed = Cache::open(&folder)?.clear()?;
                eprintln!("{} freed in {}", BinaryBytes(freed), folder.display());
            }
        }
        std::io::stdout().write_all(out.as_bytes())?;
        Ok(ExitCode::SUCCESS)
    }
}

//! `iree-llm cache`: look after the cache of compiled graphs and packed weights.

use std::io::Write;
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::{Context, Result};
use clap::Subcommand;
use indicatif::{DecimalBytes, HumanDuration};
use xla_session::cache::{Cache, CacheEntry, Kind};

use crate::engine::CacheArgs;

/// What to do with it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  iree-llm cache list
  iree-llm cache verify
  iree-llm cache clear --stale      what models left that have changed, moved or gone
  iree-llm cache clear

Clearing is safe, also while programs run: what is missing is compiled or packed again when it is \
needed. What `iree-llm pull smollm2` brought lies in the folder too, below `models`, and stays: it does \
not come back by itself. Packed weights are noticed to be damaged at their ends and in a sample at every \
start, and everywhere by `verify`; compiled graphs are verified at every start.")]
pub struct Args {
    #[command(subcommand)]
    action: Action,

    #[command(flatten)]
    cache: CacheArgs,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the entries: size, last use, kind, name, model, key; `stale` where the model has
    /// changed, moved or gone since
    List,
    /// Print the folder
    Path,
    /// Read every entry to the end, and remove the damaged ones
    Verify,
    /// Remove every entry, or those picked
    Clear {
        /// Only packed weights
        #[arg(long)]
        weights: bool,

        /// Only weights of models that have changed, moved or gone
        #[arg(long)]
        stale: bool,
    },
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
            _ if !folder.exists() => {}
            Action::List => {
                let now = SystemTime::now();
                for entry in Cache::open(folder)?.entries()? {
                    let unused = now.duration_since(entry.last_used).unwrap_or_default();
                    let ago = format!("{} ago", HumanDuration(unused));
                    out += &format!("{ago:>14}  {}\n", line(&entry));
                }
            }
            Action::Verify => {
                let cache = Cache::open(folder)?;
                for entry in cache.entries()? {
                    let good = cache.verify(&entry)?;
                    if !good {
                        cache.clear_if(|it| it.key == entry.key)?;
                    }
                    let found = if good { "good" } else { "damaged, removed" };
                    out += &format!("{found:<16}  {}\n", line(&entry));
                }
            }
            Action::Clear { weights, stale } => {
                let cache = Cache::open(&folder)?;
                let freed = if weights || stale {
                    cache.clear_if(|entry| {
                        (entry.label.kind == Kind::Weights || !weights)
                            && (entry.label.is_stale() || !stale)
                    })?
                } else {
                    cache.clear()?
                };
                eprintln!("{} freed in {}", DecimalBytes(freed), folder.display());
            }
        }
        std::io::stdout().write_all(out.as_bytes())?;
        Ok(ExitCode::SUCCESS)
    }
}

/// What an entry is.
fn line(entry: &CacheEntry) -> String {
    let kind = match entry.label.kind {
        Kind::Graph => "graph",
        Kind::Weights => "weights",
        _ => "",
    };
    format!(
        "{:>10}  {kind:<7}  {:<12}  {:<24}  {:.12}{}",
        DecimalBytes(entry.bytes).to_string(),
        entry.label.name,
        entry.label.model,
        entry.key.to_string(),
        if entry.label.is_stale() { "  stale" } else { "" },
    )
}

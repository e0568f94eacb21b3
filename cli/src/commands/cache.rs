//! `iree-llm cache`: look after the cache of compiled graphs and packed weights.

use std::io::{self, Write};
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::{Context, Result};
use clap::Subcommand;
use indicatif::{DecimalBytes, HumanDuration};
use xla_session::cache::{Cache, CacheEntry, Key, Kind};

use crate::engine::CacheArgs;
use crate::progress::Progress;

/// What to do with it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  iree-llm cache list
  iree-llm cache verify
  iree-llm cache clear --stale      what models left that have changed, moved or gone
  iree-llm cache clear

Clearing is safe, also while programs run: what is missing is compiled or packed again when it is \
needed. Only where several machines share the folder (NFS), stop the programs of the others before. What `iree-llm pull smollm2` brought lies in the folder too, below `models`, and stays: it does \
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
    /// changed, moved or gone since, `damaged` what nothing more is known of
    List,
    /// Print the folder
    Path,
    /// Read every entry to the end, and remove the damaged ones; the exit code is 1 where there were any
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
        let mut out = io::stdout().lock();
        match self.action {
            Action::Path => writeln!(out, "{}", folder.display())?,
            _ if !folder.exists() => {}
            Action::List => {
                let (cache, now) = (Cache::open(folder)?, SystemTime::now());
                for entry in cache.entries()? {
                    let unused = now.duration_since(entry.last_used).unwrap_or_default();
                    let ago = format!("{} ago", HumanDuration(unused));
                    writeln!(out, "{ago:>14}  {}", line(&entry))?;
                }
                for (key, bytes) in cache.fragments()? {
                    writeln!(out, "{:>14}  {}", "damaged", fragment(&key, bytes))?;
                }
            }
            Action::Verify => {
                let cache = Cache::open(folder)?;
                if !verify(&cache, &mut out)? {
                    return Ok(ExitCode::FAILURE);
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
                let freed = format!("{} freed in {}", DecimalBytes(freed), folder.display());
                Progress::new(false).say(&freed);
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Reads every entry, says what it is, and removes what is damaged; returns whether nothing was, and all could be read.
fn verify(cache: &Cache, out: &mut impl Write) -> Result<bool> {
    let entries = cache.entries()?;
    let total = entries.iter().map(|entry| entry.bytes).sum();
    let progress = Progress::new(false);
    let shown = progress.transfer("verifying", Some(total));
    let (mut read, mut all_good) = (0, true);
    let mut say = |found: &str, line: &str| {
        progress.aside(|| writeln!(out, "{found:<16}  {line}").and_then(|()| out.flush()))
    };
    for entry in entries {
        let verified = cache.verify(&entry);
        read += entry.bytes;
        shown.set(read, Some(total));
        let found = match verified {
            Ok(true) => GOOD,
            Ok(false) if cache.is_gone(&entry.key) => continue,
            Ok(false) => removed(cache, &entry.key, "damaged, in use", &progress),
            Err(error) => {
                progress.report(&format!("error: {error}"));
                "unreadable"
            }
        };
        all_good &= found == GOOD;
        say(found, &line(&entry))?;
    }
    for (key, bytes) in cache.fragments()? {
        let found = removed(cache, &key, MADE, &progress);
        all_good &= found == MADE;
        say(found, &fragment(&key, bytes))?;
    }
    Ok(all_good)
}

const GOOD: &str = "good";
const MADE: &str = "being made";

/// Removes what is damaged; what is to be said of it, `in_use` where somebody holds it.
fn removed(cache: &Cache, key: &Key, in_use: &'static str, progress: &Progress) -> &'static str {
    match cache.discard(key) {
        Ok(true) => "damaged, removed",
        Ok(false) => in_use,
        Err(error) => {
            progress.report(&format!("error: {error}"));
            "damaged"
        }
    }
}

/// What is left of an entry.
fn fragment(key: &Key, bytes: u64) -> String {
    let bytes = DecimalBytes(bytes).to_string();
    format!("{bytes:>10}  {:<7}  {:<12}  {:<24}  {:.12}", "", "", "", key.to_string())
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

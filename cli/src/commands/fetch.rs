//! `iree-llm fetch`: bring what models are compiled with.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::ValueEnum;

use crate::progress::QuietArgs;

/// What to bring.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  iree-llm fetch compiler                  IREE's compiler (84 MB) from the Python registry, by pip
  iree-llm fetch compiler --from FILE.whl  the same wheel, brought by hand; no Python, no network

The compiler is one version, pinned by its SHA-256, and is kept in the user's data folder (0.34 GB), where \
every command finds it. A program that came with its compiler needs none.")]
pub struct Args {
    /// What to bring
    #[arg(value_enum)]
    what: What,

    /// The compiler's wheel, instead of the Python registry
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,

    /// Never touch the network: say where the compiler is, take it from --from, or fail
    #[arg(long, env = "IREE_LLM_OFFLINE", action = clap::ArgAction::SetTrue,
          value_parser = clap::builder::FalseyValueParser::new())]
    offline: bool,

    #[command(flatten)]
    quiet: QuietArgs,
}

/// What can be brought.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum What {
    /// IREE's compiler, with its linker and library
    Compiler,
}

impl Args {
    /// Brings it and prints where it is.
    ///
    /// # Errors
    ///
    /// Those of [`crate::compiler::fetch`].
    #[cfg(feature = "iree")]
    pub fn run(self) -> Result<ExitCode> {
        use std::io::Write;

        use crate::compiler::{self, Origin};

        let origin = match (&self.from, self.offline) {
            (Some(file), _) => Origin::File(file),
            (None, true) => Origin::Offline,
            (None, false) => Origin::Registry,
        };
        let What::Compiler = self.what;
        let program = compiler::fetch(&origin, &self.quiet.progress())?;
        writeln!(std::io::stdout(), "{}", program.display())?;
        Ok(ExitCode::SUCCESS)
    }

    /// Says why it cannot.
    #[cfg(not(feature = "iree"))]
    pub fn run(self) -> Result<ExitCode> {
        let _ = (self.what, self.from, self.offline, self.quiet);
        anyhow::bail!(crate::engine::WITHOUT_IREE)
    }
}

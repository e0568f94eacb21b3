//! `iree-llm man`: manual pages.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::CommandFactory;
use clap_mangen::Man;

/// Where to.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  iree-llm man | man -l -                       read it
  iree-llm man ~/.local/share/man/man1          one page for each command, where man finds them")]
pub struct Args {
    /// Write the pages of all commands into this folder, instead of printing the first one
    #[arg(value_name = "FOLDER")]
    folder: Option<PathBuf>,
}

impl Args {
    /// Prints the page, or writes all of them.
    pub fn run(self) -> Result<ExitCode> {
        let command = crate::Cli::command();
        let Some(folder) = self.folder else {
            let mut page = Vec::new();
            Man::new(command).render(&mut page)?;
            std::io::stdout().write_all(&page)?;
            return Ok(ExitCode::SUCCESS);
        };
        let place = || folder.display().to_string();
        std::fs::create_dir_all(&folder).with_context(place)?;
        clap_mangen::generate_to(command, &folder).with_context(place)?;
        Ok(ExitCode::SUCCESS)
    }
}

//! `iree-llm completions`: a shell's completion script.

use std::process::ExitCode;

use anyhow::Result;
use clap::CommandFactory;
use clap_complete::Shell;

/// What to print.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  iree-llm completions bash > ~/.local/share/bash-completion/completions/iree-llm
  iree-llm completions zsh > ~/.zfunc/_iree-llm
  iree-llm completions fish > ~/.config/fish/completions/iree-llm.fish")]
pub struct Args {
    /// The shell
    shell: Shell,
}

impl Args {
    /// Prints the script.
    pub fn run(self) -> Result<ExitCode> {
        // Into memory first: the generator panics when stdout is closed.
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut crate::Cli::command(), "iree-llm", &mut script);
        std::io::Write::write_all(&mut std::io::stdout(), &script)?;
        Ok(ExitCode::SUCCESS)
    }
}

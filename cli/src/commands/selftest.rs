//! `iree-llm selftest`: compile, load and run one addition.

use std::process::ExitCode;

use anyhow::Result;

use crate::engine::CompileArgs;

/// Where to add.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  iree-llm selftest                        prints [11, 22, 33, 44]
  iree-llm selftest --device local-sync")]
pub struct Args {
    /// Device, as `iree-llm devices` lists them
    #[arg(long, env = "IREE_LLM_DEVICE", value_name = "URI", default_value = "local-task")]
    device: String,

    #[command(flatten)]
    compile: CompileArgs,
}

impl Args {
    /// Adds.
    #[cfg(feature = "iree")]
    pub fn run(self) -> Result<ExitCode> {
        use std::io::Write;

        use anyhow::anyhow;

        let compiler = self.compile.compiler();
        let compiler = compiler.map_err(|(error, fix)| anyhow!("{error}\n{fix}"))?;
        let sum = crate::selftest::add(&compiler, &self.device)?;
        let sum: Vec<_> = sum.iter().map(f32::to_string).collect();
        writeln!(std::io::stdout(), "[{}]", sum.join(", "))?;
        Ok(ExitCode::SUCCESS)
    }

    /// Says why it cannot.
    #[cfg(not(feature = "iree"))]
    pub fn run(self) -> Result<ExitCode> {
        let _ = (self.device, self.compile);
        anyhow::bail!(crate::engine::WITHOUT_IREE)
    }
}

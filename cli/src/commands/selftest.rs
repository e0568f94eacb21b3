//! Placeholder.
#[derive(Debug, clap::Args)]
pub struct Args {}
impl Args {
    /// x
    pub fn run(self) -> anyhow::Result<std::process::ExitCode> {
        anyhow::bail!("todo")
    }
}

//! `cargo xtask demo`: from a fresh clone to generated text.

use anyhow::Result;

use crate::{fetch_iree, flags, workspace};

pub fn run(flags: &flags::Demo) -> Result<()> {
    fetch_iree::ensure(&flags.network)?;
    let mut command = workspace::cargo();
    command.args(["run", "--release", "--package=cli", "--manifest-path"]);
    command.arg(workspace::root().join("Cargo.toml"));
    if flags.network.offline {
        command.arg("--offline");
    }
    command.args(["--", "generate", "--raw", "--echo", "--prompt", &flags.prompt]);
    command.args(&flags.generate);
    // Paths among the arguments are relative to the user's folder.
    command.current_dir(std::env::current_dir()?);
    workspace::run(&mut command)
}

//! Where things are in this workspace, and how its cargo is run.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::flags;

/// The folder of the workspace.
pub fn root() -> &'static Path {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here)
}

/// A cargo command in the workspace.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}

/// What `cargo metadata` says of the workspace.
pub fn metadata() -> Result<serde_json::Value> {
    let output = cargo()
        .args(["metadata", "--format-version=1", "--no-deps", "--offline"])
        .output()
        .context("cannot run cargo metadata")?;
    if !output.status.success() {
        bail!("cargo metadata failed:\n{}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Cargo's target folder, wherever the user's configuration puts it.
pub fn target_dir() -> Result<PathBuf> {
    let metadata = metadata()?;
    let dir = metadata["target_directory"].as_str().context("cargo metadata has no target")?;
    Ok(dir.into())
}

/// Runs `command` and fails when it fails.
pub fn run(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let status = command.status().with_context(|| format!("cannot run {program}"))?;
    if !status.success() {
        let words: Vec<_> = command.get_args().map(|arg| arg.to_string_lossy()).collect();
        bail!("`{program} {}` failed ({status})", words.join(" "));
    }
    Ok(())
}

/// Runs this same command line with xtask's feature `feature` built in and `variables` set.
///
/// Only the tasks that need a heavy dependency wait for it to compile.
pub fn again_with(
    feature: &str,
    network: &flags::Network,
    variables: &[(&str, &OsStr)],
) -> Result<()> {
    let mut command = cargo();
    command.args(["run", "--quiet", "--package=xtask", "--features", feature]);
    command.arg("--manifest-path").arg(root().join("Cargo.toml"));
    if network.offline {
        command.arg("--offline");
    }
    command.arg("--").args(std::env::args_os().skip(1));
    command.envs(variables.iter().copied());
    // Paths on the command line are relative to the user's folder, not to the workspace.
    command.current_dir(std::env::current_dir()?);
    let status = command.status().context("cannot run cargo")?;
    // The inner run has already said what was wrong.
    std::process::exit(status.code().unwrap_or(1));
}

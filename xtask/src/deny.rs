//! Dependencies: their licences, where they come from, and which faults of them are known (`deny.toml`).

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Result;

use crate::{flags, workspace};

/// Checks them with cargo-deny, which is there, or is installed into the target folder, or is asked for.
pub fn check(network: &flags::Network, install: bool) -> Result<()> {
    let tools = workspace::target_dir()?.join("tools");
    let Some(program) = find(&tools, network, install)? else {
        eprintln!(
            "SKIPPED: licences, sources and known faults of dependencies: there is no cargo-deny; \
             `cargo install --locked cargo-deny` brings it, and so does `cargo xtask test --all`"
        );
        return Ok(());
    };
    let deny = |args: &[&str]| {
        let mut deny = Command::new(&program);
        // Who cannot fetch is told so, and not asked for a password.
        deny.current_dir(workspace::root()).env("GIT_TERMINAL_PROMPT", "0");
        deny.args(network.offline.then_some("--offline")).args(args);
        deny
    };
    let check = ["check", "--hide-inclusion-graph"];
    workspace::run(deny(&check).args(["licenses", "bans", "sources"]))?;
    // It is a repository of GitHub, which not everybody reaches.
    if network.offline || workspace::run(&mut deny(&["fetch", "db"])).is_err() {
        eprintln!(
            "SKIPPED: known faults of dependencies: the database of RustSec cannot be fetched; \
             licences, bans and sources were checked"
        );
        return Ok(());
    }
    workspace::run(deny(&check).args(["--disable-fetch", "advisories"]))
}

/// The program: that of `tools`, or whose name the shell finds.
fn find(tools: &Path, network: &flags::Network, install: bool) -> Result<Option<PathBuf>> {
    let own = tools.join("bin/cargo-deny");
    let there = [own.clone(), "cargo-deny".into()].into_iter().find(|it| answers(it));
    if there.is_some() || !install || network.offline {
        return Ok(there);
    }
    let mut install = workspace::cargo();
    install.args(["install", "--locked", "cargo-deny", "--root"]).arg(tools);
    match workspace::run(&mut install) {
        Ok(()) => Ok(Some(own)),
        // Cargo has said why.
        Err(error) if can_search() => Err(error),
        Err(_) => Ok(None),
    }
}

/// Whether the registry can be reached.
fn can_search() -> bool {
    let mut search = workspace::cargo();
    search
        .args(["search", "--limit", "1", "cargo-deny"])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    search.status().is_ok_and(|status| status.success())
}

fn answers(program: &Path) -> bool {
    let mut command = Command::new(program);
    command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

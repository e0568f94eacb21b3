//! `cargo xtask demo`: from a fresh clone to generated text.

use std::process::Command;

use anyhow::Result;

use crate::{fetch_iree, flags, workspace};

/// What the trained model is asked, and what the small one in `models/` goes on with.
const QUESTION: &str = "Why is the sky blue?";
const STORY: &str = "Tell me a story.";

pub fn run(flags: &flags::Demo) -> Result<()> {
    fetch_iree::ensure(&flags.network)?;
    let program = |arguments: &[&str]| -> Result<Command> {
        let mut command = workspace::cargo();
        command.args(["run", "--release", "--package=cli", "--manifest-path"]);
        command.arg(workspace::root().join("Cargo.toml"));
        if flags.network.offline {
            command.arg("--offline");
        }
        // Paths among the arguments are relative to the user's folder.
        command.arg("--").args(arguments).current_dir(std::env::current_dir()?);
        Ok(command)
    };
    let mut pull = program(&["pull", "smollm2"])?;
    if flags.network.offline {
        pull.env("PIP_NO_INDEX", "1");
    }
    let trained = workspace::run(&mut pull);
    if let Err(error) = &trained {
        eprintln!(
            "{}: going on with the small model in models/, which tells stories",
            crate::chain(error)
        );
    }
    let default = if trained.is_ok() { QUESTION } else { STORY };
    let prompt = flags.prompt.as_deref().unwrap_or(default);
    eprintln!("==> iree-llm generate -p \"{prompt}\"");
    workspace::run(program(&["generate", "--prompt", prompt])?.args(&flags.generate))
}

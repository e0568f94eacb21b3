//! `cargo xtask bench`: this program beside llama.cpp, on the same weights, in the same minutes.
//!
//! The parts in the order in which they run: llama.cpp from PyPI (`python`), one random model for
//! both (`model`), what the machine could do at best (`limits`), the two programs in turn
//! (`contest`), and the table of it all (`table`).

#[cfg(feature = "bench")]
mod contest;
#[cfg(feature = "bench")]
mod limits;
#[cfg(feature = "bench")]
mod machine;
#[cfg(feature = "bench")]
mod model;
#[cfg(feature = "bench")]
mod python;
#[cfg(feature = "bench")]
mod sample;
#[cfg(feature = "bench")]
mod table;

use anyhow::{Context, Result};

use crate::{flags, workspace};

/// Measures, or starts itself again as a program that can: optimised, with the feature `bench`.
pub fn run(flags: &flags::Bench) -> Result<()> {
    #[cfg(feature = "bench")]
    if !cfg!(debug_assertions) {
        return optimised::run(flags);
    }
    let mut command = workspace::cargo();
    command.args(["run", "--quiet", "--release", "--package=xtask", "--features=bench"]);
    command.arg("--manifest-path").arg(workspace::root().join("Cargo.toml"));
    if flags.network.offline {
        command.arg("--offline");
    }
    command.arg("--").args(std::env::args_os().skip(1));
    // Paths on the command line are relative to the user's folder, not to the workspace.
    command.current_dir(std::env::current_dir()?);
    eprintln!("==> building the benchmark");
    let status = command.status().context("cannot run cargo")?;
    // The inner run has already said what was wrong.
    std::process::exit(status.code().unwrap_or(1));
}

#[cfg(feature = "bench")]
mod optimised {
    use std::fs;
    use std::path::PathBuf;

    use anyhow::{Context, Result};

    use super::contest::{Contest, Plan};
    use super::model::Format;
    use super::{limits, machine, model, python, table};
    use crate::{fetch_iree, flags, workspace};

    pub fn run(flags: &flags::Bench) -> Result<()> {
        let formats = Format::select(&flags.precision)?;
        let threads =
            if flags.threads.is_empty() { vec![machine::cores()] } else { flags.threads.clone() };
        let plan = if flags.quick { Plan::QUICK } else { Plan::FULL };
        let rounds = flags.rounds.unwrap_or(plan.rounds);

        let document = match &flags.out {
            Some(path) => Some(path.clone()),
            None if flags.quick => None,
            None => Some(workspace::root().join("docs").join("performance.md")),
        };
        if let Some(document) = &document {
            table::check(document)?;
        }

        let folder = workspace::target_dir()?.join("bench");
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        fetch_iree::ensure(&flags.network)?;
        let python = python::ensure(&folder, flags.network.offline)?;
        let model = model::ensure(&folder.join("model"), &python, &formats)?;
        let program = build(flags.network.offline)?;

        let mut contest = Contest::new(program, python, model, folder.join("compiled"), plan);
        for format in &formats {
            eprintln!("==> {}: compiling, and llama.cpp's best settings", format.name);
            contest.prepare(format, threads.iter().copied().max().unwrap_or(1))?;
        }
        let mut machine = Vec::new();
        for round in 1..=rounds {
            for &threads in &threads {
                eprintln!("==> round {round} of {rounds}, {threads} threads: the machine's limits");
                machine.push(limits::measure(threads, flags.quick)?);
                for format in &formats {
                    eprintln!("==> round {round} of {rounds}, {threads} threads: {}", format.name);
                    contest.round(format, threads)?;
                }
            }
        }
        let section = table::section(&table::Results {
            contest: &contest,
            limits: &machine,
            machine: machine::describe(),
            command: command_line(),
            rounds,
        })?;
        print!("{section}");
        fs::write(folder.join("results.json"), contest.json()?)
            .with_context(|| folder.join("results.json").display().to_string())?;
        if let Some(document) = document {
            table::replace(&document, &section)?;
            eprintln!("==> written to {}", document.display());
        }
        eprintln!("==> every sample is in {}", folder.join("results.json").display());
        Ok(())
    }

    /// Builds the program to measure.
    fn build(offline: bool) -> Result<PathBuf> {
        eprintln!("==> building iree-llm");
        let mut command = workspace::cargo();
        command.args(["build", "--quiet", "--release", "--package=cli"]);
        if offline {
            command.arg("--offline");
        }
        workspace::run(&mut command)?;
        let name = format!("iree-llm{}", std::env::consts::EXE_SUFFIX);
        Ok(workspace::target_dir()?.join("release").join(name))
    }

    fn command_line() -> String {
        let arguments: Vec<_> = std::env::args().skip(1).collect();
        format!("cargo xtask {}", arguments.join(" "))
    }
}

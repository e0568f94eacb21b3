//! `cargo xtask bench`: this program beside llama.cpp, on the same weights, in the same minutes.
//!
//! What is needed first: llama.cpp from PyPI (`python`, `llama_cpp`), one random model for both
//! (`model`), how each program is run (`programs`). Then the parts: the two in turn (`contest`,
//! `sample`), beside what the machine could do at best (`limits`, `machine`), in a table (`table`),
//! and beside an older one of ours (`baseline`); how cost grows (`scaling`, `plot`); many sequences at
//! once (`batched`), with a common beginning (`prefix`), with drafts (`speculate`), from many clients
//! (`serve`). They go to their
//! places in `docs/performance.md` and `docs/measurements.md` (`document`). Where our time goes (`bench --profile` of `iree-llm`)
//! is only printed.

#[cfg(feature = "bench")]
mod baseline;
#[cfg(feature = "bench")]
mod batched;
#[cfg(feature = "bench")]
mod contest;
#[cfg(feature = "bench")]
mod document;
#[cfg(feature = "bench")]
mod limits;
#[cfg(feature = "bench")]
mod llama_cpp;
#[cfg(feature = "bench")]
mod machine;
#[cfg(feature = "bench")]
mod model;
#[cfg(feature = "bench")]
mod plot;
#[cfg(feature = "bench")]
mod prefix;
#[cfg(feature = "bench")]
mod programs;
#[cfg(feature = "bench")]
mod python;
#[cfg(feature = "bench")]
mod sample;
#[cfg(feature = "bench")]
mod scaling;
#[cfg(feature = "bench")]
mod serve;
#[cfg(feature = "bench")]
mod speculate;
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
    use std::path::{Path, PathBuf};

    use anyhow::{Context, Result, ensure};
    use clap::ValueEnum;

    use super::batched::Batched;
    use super::contest::{Contest, Plan};
    use super::model::Format;
    use super::programs::{Programs, Served, tests};
    use super::{
        baseline, batched, document, limits, llama_cpp, machine, model, plot, prefix, scaling,
        serve, speculate, table,
    };
    use crate::flags::BenchPart;
    use crate::{fetch_iree, flags, workspace};

    pub fn run(flags: &flags::Bench) -> Result<()> {
        let formats = Format::select(&flags.precision)?;
        let threads = threads(flags);
        let plan = if flags.quick { Plan::QUICK } else { Plan::FULL };
        let parts = if flags.part.is_empty() { BenchPart::value_variants() } else { &flags.part };
        if let Some(baseline) = &flags.baseline {
            let name = baseline.display();
            ensure!(baseline.is_file(), "--baseline {name}: no such program: give an iree-llm");
            ensure!(
                parts.contains(&BenchPart::Table),
                "--baseline is for the table: add `table` to --part"
            );
        }
        for file in &flags.gguf {
            let name = file.display();
            ensure!(file.is_file(), "--gguf {name}: no such file");
            ensure!(
                parts.contains(&BenchPart::Serve),
                "--gguf is for the servers: add `serve` to --part"
            );
        }
        let document = |part| match &flags.out {
            Some(path) => Some(path.clone()),
            None if flags.quick => None,
            None => Some(document::of(part)),
        };
        for &part in parts {
            document(part).map_or(Ok(()), |path| document::check(&path, part))?;
        }

        let folder = workspace::target_dir()?.join("bench");
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        fetch_iree::ensure(&flags.network)?;
        let llama = llama_cpp::ensure(&folder, &flags.network)?;
        let model = model::ensure(&folder.join("model"), &llama, &formats)?;
        let program = build(flags.network.offline)?;
        let baseline = flags.baseline.as_ref().map(std::path::absolute).transpose()?;
        let programs = Programs::new(program, baseline, llama, model, &folder);
        let mut contest = Contest::new(programs, plan, threads[0]);
        let plotted = formats[0];
        for &format in &formats {
            let both = parts.contains(&BenchPart::Table)
                || parts.contains(&BenchPart::Plot) && format == plotted;
            if both {
                eprintln!("==> {}: compiling, and llama.cpp's best settings", format.name);
                contest.prepare(format)?;
            }
        }
        let turns = |usual: usize| flags.rounds.map_or(usual, |rounds| rounds as usize);
        for &part in parts {
            let section = match part {
                BenchPart::Table => {
                    let rounds = flags.rounds.unwrap_or(plan.rounds);
                    tables(&mut contest, &formats, &threads, rounds, flags.quick, &folder)?
                }
                BenchPart::Profile => profiles(&contest, &formats, &folder)?,
                BenchPart::Plot => {
                    let document = document(part);
                    let beside = document.as_deref().and_then(Path::parent);
                    plots(&contest, plotted, beside.unwrap_or(&folder))?
                }
                BenchPart::Batched => {
                    let plan = batched::Plan::new(flags.quick);
                    let plan = batched::Plan { turns: turns(plan.turns), ..plan };
                    let samples = folder.join("batched.json");
                    let keep = |it: &Batched| document::write(&samples, &it.json()?);
                    let programs = &contest.programs;
                    let batched = batched::measure(programs, &formats, threads[0], plan, &keep)?;
                    eprintln!("==> every sample is in {}", samples.display());
                    batched.section(&command_line())
                }
                BenchPart::Prefix => {
                    let plan = prefix::Plan::new(flags.quick);
                    let plan = prefix::Plan { turns: turns(plan.turns), ..plan };
                    prefix::section(&contest.programs, &formats, threads[0], plan)?
                }
                BenchPart::Speculate => {
                    let turns = turns(if flags.quick { 1 } else { speculate::TURNS });
                    speculate::section(&contest.programs, &formats, threads[0], turns)?
                }
                BenchPart::Serve => {
                    let plan = serve::Plan::new(flags.quick);
                    let plan = serve::Plan { turns: turns(plan.turns), ..plan };
                    let programs = &contest.programs;
                    let random = formats.iter().map(|format| programs.served(format));
                    let files = flags.gguf.iter().map(|file| Served::file(file));
                    let models = random.chain(files).collect();
                    serve::section(programs, models, threads[0], &plan, &command_line())?
                }
            };
            println!("{section}");
            if let Some(document) = document(part)
                && document::replace(&document, part, &section)?
            {
                eprintln!("==> written to {}", document.display());
            }
        }
        Ok(())
    }

    /// The most first: as asked for, or all cores and then one.
    fn threads(flags: &flags::Bench) -> Vec<usize> {
        let mut threads = match &flags.threads[..] {
            [] => vec![machine::cores(), 1],
            asked => asked.iter().map(|&it| it as usize).collect(),
        };
        threads.sort_unstable_by(|a, b| b.cmp(a));
        threads.dedup();
        threads
    }

    fn tables(
        contest: &mut Contest,
        formats: &[&'static Format],
        threads: &[usize],
        rounds: u32,
        quick: bool,
        folder: &Path,
    ) -> Result<String> {
        let samples = folder.join("results.json");
        let mut machine = Vec::new();
        for round in 1..=rounds {
            for &threads in threads {
                for format in formats {
                    eprintln!("==> round {round} of {rounds}, {threads} threads: {}", format.name);
                    machine.push(limits::measure(format.name, threads, quick)?);
                    contest.round(format, threads)?;
                    // What is measured is kept, whatever becomes of the rest.
                    document::write(&samples, &contest.json()?)?;
                }
            }
        }
        eprintln!("==> every sample is in {}", samples.display());
        let mut section = table::section(&table::Results {
            contest,
            limits: &machine,
            machine: machine::describe(),
            command: command_line(),
            rounds,
        });
        if contest.programs.has_baseline() {
            section += &baseline::section(contest, threads);
        }
        Ok(section)
    }

    fn profiles(contest: &Contest, formats: &[&'static Format], folder: &Path) -> Result<String> {
        let plan = contest.plan;
        let passes = tests(&[plan.short], &[plan.generate], 1);
        let threads = contest.threads;
        let mut section =
            format!("{}, {}, threads: {threads}.\n\n", machine::describe(), machine::today());
        for format in formats {
            eprintln!("==> {}: where the time goes", format.name);
            let file = folder.join(format!("{}.ireeprof", format.name));
            let tables = contest.programs.profile(format, threads, &passes, &file)?;
            section += &format!("### {}\n\n{}\n\n", format.name, tables.trim());
        }
        Ok(section)
    }

    fn plots(contest: &Contest, format: &'static Format, folder: &Path) -> Result<String> {
        eprintln!("==> {}: how cost grows", format.name);
        let scaling = scaling::measure(contest, format)?;
        let threads = contest.threads;
        let title = format!(
            "{} beside llama.cpp's {}; {threads} threads in the upper panels; {}",
            format.name,
            format.llama,
            machine::today()
        );
        plot::write(&folder.join(PLOT), &scaling, &title)?;
        let caption = format!(
            "Weights in {} (llama.cpp: {}), one run of each point. {}, {}.",
            format.name,
            format.llama,
            machine::describe(),
            machine::today()
        );
        Ok(scaling.section(PLOT, &caption))
    }

    /// The plot's file, beside the document.
    const PLOT: &str = "scaling.svg";

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
        let arguments = std::env::args_os().skip(1).map(|it| it.to_string_lossy().into_owned());
        in_a_shell(arguments.collect())
    }

    /// The call that gave the figures, as a shell takes it: where they were written is no part of it.
    fn in_a_shell(mut arguments: Vec<String>) -> String {
        arguments.retain(|it| !it.starts_with("--out="));
        if let Some(at) = arguments.iter().position(|it| it == "--out") {
            arguments.drain(at..(at + 2).min(arguments.len()));
        }
        let quoted = arguments.iter().map(|it| quoted(it));
        std::iter::once("cargo xtask".to_owned()).chain(quoted).collect::<Vec<_>>().join(" ")
    }

    fn quoted(argument: &str) -> String {
        let plain = |it: char| it.is_ascii_alphanumeric() || "-_.,/=:+@%".contains(it);
        if !argument.is_empty() && argument.chars().all(plain) {
            return argument.to_owned();
        }
        format!("'{}'", argument.replace('\'', r"'\''"))
    }

    #[cfg(test)]
    mod unit_tests {
        #[test]
        fn arguments_are_quoted_where_a_shell_needs_it() {
            let quoted = ["--part", "table,serve", "my model.gguf", "it's", ""].map(super::quoted);
            assert_eq!(quoted, ["--part", "table,serve", "'my model.gguf'", r"'it'\''s'", "''"]);
        }

        #[test]
        fn where_tables_are_written_is_not_said_in_them() {
            for arguments in [
                &["bench", "--out", "my tables.md", "--part", "table"][..],
                &["bench", "--part", "table", "--out"],
                &["bench", "--out=tables.md", "--part", "table"],
            ] {
                let arguments = arguments.iter().map(|&it| it.to_owned()).collect();
                assert_eq!(super::in_a_shell(arguments), "cargo xtask bench --part table");
            }
        }
    }
}

//! `iree-llm`: language models, compiled with IREE, from the command line.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

mod commands;

mod answer;
mod bench;
#[cfg(feature = "iree")]
mod compiler;
mod engine;
mod flights;
mod form;
mod incoming;
mod interrupt;
mod lines;
mod model_source;
#[cfg(feature = "otel")]
mod otlp;
mod output;
mod progress;
mod prompts;
mod quality;
mod readable;
mod registry;
mod report;
#[cfg(feature = "iree")]
mod run;
mod sampling;
#[cfg(feature = "iree")]
mod selftest;
mod speculation;
mod text_files;
mod variables;
mod vectors;

#[cfg(test)]
#[path = "../tests/fixture/mod.rs"]
mod fixture;

/// Runs Llama, Qwen, Gemma, Phi and other language models, compiled with IREE for this machine
#[derive(Debug, Parser)]
#[command(name = "iree-llm", version, after_help = EXAMPLES, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  iree-llm generate                                  a story from the default model
  iree-llm generate -m ./Llama-3.2-1B -p 'The sea'   go on with a text
  iree-llm chat -m Qwen/Qwen2.5-0.5B-Instruct        talk to a model from the Hugging Face hub
  iree-llm serve -m ./Llama-3.2-1B-Instruct          answer OpenAI's clients on port 8080
  iree-llm doctor                                    what is ready here, and what to do if not";

#[derive(Debug, Subcommand)]
enum Command {
    /// Answer a prompt, or go on with it
    Generate(Box<commands::generate::Args>),
    /// Talk to a model
    Chat(Box<commands::chat::Args>),
    /// Serve models by HTTP, to OpenAI's clients and others
    Serve(Box<commands::serve::Args>),
    /// Make vectors of texts: their embeddings
    Embed(Box<commands::embed::Args>),
    /// Say how well documents answer a query
    Rank(Box<commands::rank::Args>),
    /// Measure how fast a model runs here
    Bench(Box<commands::bench::Args>),
    /// Measure how far int8 and int4 are from float32
    Quality(Box<commands::quality::Args>),
    /// Compare the tokens of a device with those of a reference
    Check(Box<commands::check::Args>),
    /// Compile a model's graphs ahead of time, for machines without a compiler
    Compile(commands::compile::Args),
    /// Write a model's graphs as StableHLO text
    Emit(commands::emit::Args),
    /// Write a model of any format as a folder in Hugging Face layout, nothing quantised
    Convert(commands::convert::Args),
    /// Round a model to four bits by what it reads of a text, as a folder in Hugging Face layout
    Quantize(commands::quantize::Args),
    /// Look into a model folder, a safetensors file or a compiled module
    Inspect(commands::inspect::Args),
    /// Bring IREE's compiler, where the program came without it
    Fetch(commands::fetch::Args),
    /// Bring a model before it is needed
    Pull(commands::pull::Args),
    /// List what a model can run on
    Devices(commands::devices::Args),
    /// Check what running a model needs, and say what to do
    Doctor(commands::doctor::Args),
    /// Look after the cache of compiled graphs and packed weights
    Cache(commands::cache::Args),
    /// Call a function of a compiled module, or time it
    Run(Box<commands::run::Args>),
    /// Compile, load and run one addition
    Selftest(commands::selftest::Args),
    /// Print a shell's completion script
    Completions(commands::completions::Args),
    /// Print the manual page
    Man(commands::man::Args),
}

fn main() -> ExitCode {
    let line: Vec<_> = std::env::args_os().collect();
    let cli = variables::parse(&line).unwrap_or_else(|error| error.exit());
    match run(cli) {
        Ok(code) => code,
        // Whoever read our output has had enough: they need no message, and a script the code.
        Err(error) if is_broken_pipe(&error) => ExitCode::from(BROKEN_PIPE),
        Err(error) => {
            report_error(&error);
            ExitCode::FAILURE
        }
    }
}

/// The conventional exit code of a program that writes to a closed pipe: 128 and SIGPIPE.
const BROKEN_PIPE: u8 = 141;

/// Says on stderr what went wrong, and what helps if that is known.
fn report_error(error: &anyhow::Error) {
    // Nobody may be there to read it.
    let _ = writeln!(io::stderr(), "error: {}", chain(error));
    #[cfg(feature = "iree")]
    if let Some(advice) = compiler::advice(error) {
        let _ = writeln!(io::stderr(), "{advice}");
    }
}

fn run(cli: Cli) -> Result<ExitCode> {
    // A server ends by itself, and not in the middle of answers.
    if !matches!(cli.command, Command::Serve(_)) {
        interrupt::install()?;
    }
    match cli.command {
        Command::Generate(args) => args.run(),
        Command::Chat(args) => args.run(),
        Command::Serve(args) => args.run(),
        Command::Bench(args) => args.run(),
        Command::Quality(args) => args.run(),
        Command::Check(args) => args.run(),
        Command::Compile(args) => args.run(),
        Command::Embed(args) => args.run(),
        Command::Rank(args) => args.run(),
        Command::Emit(args) => args.run(),
        Command::Convert(args) => args.run(),
        Command::Quantize(args) => args.run(),
        Command::Inspect(args) => args.run(),
        Command::Fetch(args) => args.run(),
        Command::Pull(args) => args.run(),
        Command::Devices(args) => args.run(),
        Command::Doctor(args) => args.run(),
        Command::Cache(args) => args.run(),
        Command::Run(args) => args.run(),
        Command::Selftest(args) => args.run(),
        Command::Completions(args) => args.run(),
        Command::Man(args) => args.run(),
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// An error and its causes; a cause that the message before it repeats is left out.
fn chain(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;
    use clap::CommandFactory;

    #[test]
    fn flags_do_not_clash() {
        Cli::command().debug_assert();
    }

    #[test]
    fn flags_are_explained_and_their_variables_are_ours() {
        // OpenTelemetry's have the same names everywhere.
        let known = |it: &str| it.starts_with("IREE_LLM_") || it.starts_with("OTEL_");
        for command in Cli::command().get_subcommands() {
            for flag in command.get_arguments() {
                let variable = flag.get_env().map(|it| it.to_string_lossy().into_owned());
                assert!(variable.is_none_or(|it| known(&it)), "{}", flag.get_id());
                assert!(flag.get_help().is_some(), "{} {flag}", command.get_name());
            }
        }
    }

    #[test]
    fn examples_are_not_wrapped() {
        let all = Cli::command();
        for command in all.get_subcommands().chain([&all]) {
            let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            for line in text.lines().filter(|line| line.starts_with(' ')) {
                assert!(line.chars().count() <= 100, "{}: {line}", command.get_name());
            }
        }
    }

    #[test]
    fn causes_follow_once() {
        let error = anyhow!("no such file").context("a.json: no such file").context("reading");
        assert_eq!(chain(&error), "reading: a.json: no such file");
        let pipe = anyhow::Error::from(io::Error::from(io::ErrorKind::BrokenPipe));
        assert!(is_broken_pipe(&pipe) && !is_broken_pipe(&error));
    }
}

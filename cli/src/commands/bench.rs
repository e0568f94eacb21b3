//! `iree-llm bench`: how fast a model runs here.

use std::io::Write;
#[cfg(unix)]
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::ArgAction;
use serde::Serialize;
use serde::de::DeserializeOwned;
use xla_session::{Event, InferenceSession, Model, Observer, Precision};

use crate::bench::parallel::{self, Parallel};
use crate::bench::pass::{self, Pass};
use crate::bench::report::{self, Memory, Run, Start};
use crate::bench::shared_prefix::{self, SharedPrefix};
use crate::bench::speculation::{self, Speculated};
use crate::bench::table::number;
use crate::bench::{memory, profile, spread::Spread};
use crate::engine::PlaceArgs;
use crate::interrupt;
use crate::model_source::ModelArgs;
use crate::progress::{Progress, QuietArgs};

/// What to measure and how often.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,

    /// Lengths of prompts to time, in tokens; 0 times none [default: 512, with --parallel 128]
    #[arg(short = 'p', long, value_name = "N,…", value_delimiter = ',', value_parser = tokens)]
    prompt: Vec<usize>,

    /// Numbers of single tokens to time; 0 times none
    #[arg(short = 'n', long, value_name = "N,…", value_delimiter = ',', default_value = "128",
          value_parser = tokens)]
    generate: Vec<usize>,

    /// Tokens in the context before either; every -p and -n is timed at every depth
    #[arg(short, long, value_name = "N,…", value_delimiter = ',', default_value = "0",
          value_parser = tokens)]
    depth: Vec<usize>,

    /// A prompt of P tokens and then N single ones, in one pass: P,N; may be given several times
    #[arg(long, value_name = "P,N", value_parser = prompt_and_generate)]
    pg: Vec<(usize, usize)>,

    /// Numbers of sequences that run together: the prompts of all, -p tokens each, then -n steps with
    /// one token of each
    #[arg(long, value_name = "N,…", value_delimiter = ',',
          conflicts_with_all = ["depth", "pg", "profile"])]
    parallel: Vec<usize>,

    /// The time until R requests that come at once have their first tokens, whose prompts have C
    /// tokens in common and O of their own: C,O,R
    #[arg(long, value_name = "C,O,R", value_parser = shared_prefix::Shape::from_str,
          conflicts_with_all = ["depth", "pg", "profile", "parallel", "prompt", "generate"])]
    shared_prefix: Option<shared_prefix::Shape>,

    /// The tokens of a known answer with drafts and without, -n of them behind a prompt: one that
    /// repeats the prompt, and one in which drafts are wrong
    #[arg(long, action = ArgAction::SetTrue,
          conflicts_with_all = ["depth", "pg", "profile", "parallel", "shared_prefix", "prompt"])]
    speculate: bool,

    /// How often each test is repeated; the table shows the median and the range
    #[arg(short, long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: u32,

    /// Time the first repetition cold; else every test runs once before, shortened to 512 tokens
    #[arg(long)]
    no_warmup: bool,

    /// How weights lie in memory, one or several, each in a process of its own: stored, f32, bf16,
    /// int8, w8a8, int4
    #[arg(long, env = "IREE_LLM_PRECISION", value_name = "NAME,…", default_value = "stored",
          value_delimiter = ',', value_parser = Precision::from_str)]
    precision: Vec<Precision>,

    /// Run each test once and print what every compiled function costs in it; the raw events go to
    /// FILE, which IREE's iree-profile opens
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,

    /// Print a JSON array, one object for each precision, instead of tables
    #[arg(long, action = ArgAction::SetTrue)]
    json: bool,

    #[command(flatten)]
    quiet: QuietArgs,

    #[command(flatten)]
    place: PlaceArgs,

    /// Measure this precision alone and print its JSON object: one process of several
    #[arg(long, hide = true, value_parser = Precision::from_str)]
    only: Option<Precision>,
}

const EXAMPLES: &str = "\
Examples:
  iree-llm bench -m ./Llama-3.2-1B
  iree-llm bench -m ./Llama-3.2-1B -p 256,2048 -n 32 -d 0,2048 -r 3
  iree-llm bench -m ./Llama-3.2-1B --pg 2048,32 -p 0 -n 0    one pass gives both numbers
  iree-llm bench -m ./Llama-3.2-1B --precision stored,f32 --threads 1
  iree-llm bench -m ./Llama-3.2-1B -p 256 -n 16 --profile bench.ireeprof
  iree-llm bench -m ./Llama-3.2-1B --parallel 1,2,4,8,16
  iree-llm bench -m ./Llama-3.2-1B --shared-prefix 1024,32,16
  iree-llm bench -m ./Llama-3.2-1B --speculate
  iree-llm bench -m ./Llama-3.2-1B --json | jq '.[].tests[].tokens_per_second.median'

In the tables:
  pp512        a prompt of 512 tokens (processing); its time is the time to the first token
  tg128        128 tokens one by one (text generation)
  @ d2048      after 2048 tokens that are already in the context
  ready        from the start of the command until the model can be asked
  compiled     graphs that were not in the cache: the second start compiles none
  first answer from the start until the token after a prompt of 5, nothing warmed up
  weights      what they come to in memory, each counted once
  peak         the most physical memory that the process held, mapped files included (Linux)
Tokens are random ids, no tokenizer is needed. Close other programs: they share the memory's \
bandwidth, which is what decides the speed of single tokens.";

/// Tokens of the very first prompt.
const FIRST_PROMPT: usize = 5;

/// Most tokens of each part of a pass that warms up.
const WARM_UP: usize = 512;

impl Args {
    /// Measures.
    pub fn run(self) -> Result<ExitCode> {
        let start = Instant::now();
        if !self.parallel.is_empty() {
            let shapes = self.shapes();
            ensure!(
                !shapes.is_empty(),
                "nothing to measure: give --parallel, -p and -n at least 1"
            );
            return self.each(|it| self.measure_parallel(it, &shapes), parallel::tables);
        }
        if let Some(shape) = self.shared_prefix {
            return self.each(|it| self.measure_shared_prefix(it, shape), shared_prefix::tables);
        }
        if self.speculate {
            return self.each(|it| self.measure_speculation(it), speculation::tables);
        }
        let passes = self.passes();
        ensure!(!passes.is_empty(), "nothing to measure: give -p, -n or --pg at least one token");
        ensure!(
            self.profile.is_none() || self.precision.len() == 1,
            "--profile takes one precision: give --precision one name"
        );
        let profiles =
            |runs: &[Run]| runs.iter().map(|run| profile::tables(&run.breakdowns)).collect();
        let tables = if self.profile.is_some() { profiles } else { report::tables };
        self.each(|precision| self.measure(start, precision, &passes), tables)
    }

    /// Measures each precision, several in a process each, and prints what came of it.
    fn each<T: Serialize + DeserializeOwned>(
        &self,
        measure: impl Fn(Precision) -> Result<T>,
        tables: impl Fn(&[T]) -> String,
    ) -> Result<ExitCode> {
        let (mut runs, mut code) = (Vec::new(), 0);
        // A process that measures gets Ctrl-C too, and ends; what is measured is printed.
        let several = self.only.is_none() && self.precision.len() > 1;
        let _interruptible = several.then(interrupt::generating);
        match (self.only, &self.precision[..]) {
            (Some(precision), _) => {
                let run = measure(precision)?;
                writeln!(std::io::stdout(), "{}", serde_json::to_string(&run)?)?;
                return Ok(ExitCode::SUCCESS);
            }
            (None, [precision]) => runs.push(measure(*precision)?),
            (None, precisions) => (runs, code) = measured(precisions, in_own_process),
        }
        if runs.is_empty() {
            return Ok(ExitCode::from(code));
        }
        let text = if self.json { serde_json::to_string(&runs)? + "\n" } else { tables(&runs) };
        std::io::stdout().write_all(text.as_bytes())?;
        Ok(ExitCode::from(code))
    }

    /// What `--parallel` asks for.
    fn shapes(&self) -> Vec<parallel::Shape> {
        let mut shapes = Vec::new();
        for prompt in self.prompts(128) {
            for &generate in &self.generate {
                let shape = |&sequences| parallel::Shape { sequences, prompt, generate };
                shapes.extend(self.parallel.iter().map(shape));
            }
        }
        shapes.retain(|it| it.sequences > 0 && it.prompt > 0 && it.generate > 0);
        shapes
    }

    fn measure_parallel(
        &self,
        precision: Precision,
        shapes: &[parallel::Shape],
    ) -> Result<Parallel> {
        let progress = self.quiet.progress();
        let (name, model) = self.open_model(precision, &progress)?;
        for shape in shapes {
            let most = model.most_rows();
            ensure!(
                shape.sequences <= most,
                "{} sequences in one step: a step takes {most} rows",
                shape.sequences
            );
            self.fits(&model, shape.tokens())?;
        }
        let mut measured = Vec::new();
        for shape in shapes {
            let it = shape.measure(&model, self.repetitions as usize, !self.no_warmup)?;
            progress.say(&format!(
                "{} {} x pp{} + tg{}: prompts {} tok/s, decode {} tok/s",
                precision.as_str(),
                it.sequences,
                it.prompt,
                it.generate,
                number(it.tokens_per_second_prompt.median),
                number(it.tokens_per_second_decode.median),
            ));
            measured.push(it);
        }
        Ok(Parallel {
            model: name,
            device: model.device(),
            precision: precision.as_str().to_owned(),
            threads: self.place.threads(),
            parallel: measured,
        })
    }

    /// Refuses more tokens of a sequence than `model` takes, or was to have.
    fn fits(&self, model: &Model, tokens: usize) -> Result<()> {
        let max = model.config().longest_context;
        ensure!(tokens <= max, "a sequence of {tokens} tokens: this model takes {max} at most");
        let context = self.place.context().unwrap_or(model.config().max_position_embeddings);
        ensure!(
            tokens <= context,
            "a sequence of {tokens} tokens, but the context holds {context}: raise --context"
        );
        Ok(())
    }

    fn measure_shared_prefix(
        &self,
        precision: Precision,
        shape: shared_prefix::Shape,
    ) -> Result<SharedPrefix> {
        let (name, model) = self.open_model(precision, &self.quiet.progress())?;
        self.fits(&model, shape.tokens())?;
        Ok(SharedPrefix {
            model: name,
            device: model.device(),
            precision: precision.as_str().to_owned(),
            threads: self.place.threads(),
            shared_prefix: shape.measure(&model, self.repetitions as usize, !self.no_warmup)?,
        })
    }

    fn measure_speculation(&self, precision: Precision) -> Result<Speculated> {
        let progress = self.quiet.progress();
        let (name, model) = self.open_model(precision, &progress)?;
        let context = self.place.context().unwrap_or(model.config().max_position_embeddings);
        ensure!(
            model.state_bytes() == 0,
            "layers of this model keep states, which cannot take drafts back: there is nothing to measure"
        );
        let counts: Vec<_> = self.generate.iter().copied().filter(|tokens| *tokens > 1).collect();
        let most = counts.iter().max().context("nothing to measure: give -n at least 2")?;
        let needed = speculation::PROMPT + most;
        ensure!(needed <= context, "{needed} tokens do not fit the context of {context}: lower -n");
        let (repetitions, warm_up) = (self.repetitions as usize, !self.no_warmup);
        let mut speculation = Vec::new();
        for tokens in counts {
            speculation.extend(speculation::measure(&model, tokens, repetitions, warm_up)?);
        }
        Ok(Speculated {
            model: name,
            device: model.device(),
            precision: precision.as_str().to_owned(),
            threads: self.place.threads(),
            speculation,
        })
    }

    /// The model for engines, and what it is called.
    fn open_model(
        &self,
        precision: Precision,
        progress: &Arc<Progress>,
    ) -> Result<(String, Model)> {
        let found = self.model.locate_for(self.place.load_mode(), progress)?;
        let model = self.place.open_model(&found, precision, progress.observer())?;
        progress.finish();
        Ok((found.name, model))
    }

    /// Lengths of prompts, or this one.
    fn prompts(&self, default: usize) -> Vec<usize> {
        if self.prompt.is_empty() { vec![default] } else { self.prompt.clone() }
    }

    fn passes(&self) -> Vec<Pass> {
        let (mut passes, prompts) = (Vec::new(), self.prompts(512));
        for &depth in &self.depth {
            let prompts = prompts.iter().map(|&prompt| Pass { depth, prompt, generate: 0 });
            let generates =
                self.generate.iter().map(|&generate| Pass { depth, prompt: 0, generate });
            let both = self.pg.iter().map(|&(prompt, generate)| Pass { depth, prompt, generate });
            passes.extend(prompts.chain(generates).chain(both));
        }
        passes.retain(|pass| pass.prompt + pass.generate > 0);
        passes
    }

    fn measure(&self, mut start: Instant, precision: Precision, passes: &[Pass]) -> Result<Run> {
        let progress = self.quiet.progress();
        let model = self.model.locate_for(self.place.load_mode(), &progress)?;
        if !std::path::Path::new(&model.name).is_dir() {
            // Fetching a model is no part of starting it.
            start = Instant::now();
        }
        let compiled = Arc::new(AtomicUsize::new(0));
        let observer = counting(progress.observer(), compiled.clone());
        let mut opened = self.place.open(&model, precision, self.profile.clone(), observer)?;
        let ready = start.elapsed();
        let load_peak = memory::peak();
        progress.finish();

        let session = &mut *opened.session;
        let capabilities = session.capabilities().clone();
        for pass in passes {
            ensure!(
                pass.tokens() <= capabilities.context,
                "{} needs {} tokens, but the context holds {}{}",
                pass.names().join(" and "),
                pass.tokens(),
                capabilities.context,
                if pass.tokens() <= capabilities.max_context { ": raise --context" } else { "" },
            );
        }
        let first: Vec<_> = pass::tokens(capabilities.vocab_size)
            .take(FIRST_PROMPT.min(capabilities.context))
            .collect();
        session.prefill(&first)?;
        let first_token = start.elapsed();

        let (tests, breakdowns) = if self.profile.is_some() {
            (Vec::new(), self.breakdowns(session, passes)?)
        } else {
            (self.tests(session, passes, precision, &progress)?, Vec::new())
        };
        let peak = memory::peak();
        Ok(Run {
            engine: capabilities.engine.to_owned(),
            device: capabilities.device,
            precision: precision.as_str().to_owned(),
            threads: self.place.threads(),
            start: Start {
                ready_s: ready.as_secs_f64(),
                load_s: opened.load.as_secs_f64(),
                compile_s: opened.compile.as_secs_f64(),
                compiled_graphs: compiled.load(Ordering::Relaxed),
                first_prompt: first.len(),
                first_token_s: first_token.as_secs_f64(),
            },
            memory: Memory { weights: Some(opened.weights), load_peak, peak },
            tests,
            breakdowns,
            model: model.name,
        })
    }

    fn tests(
        &self,
        session: &mut dyn InferenceSession,
        passes: &[Pass],
        precision: Precision,
        progress: &Progress,
    ) -> Result<Vec<pass::Measured>> {
        let mut tests = Vec::new();
        for pass in passes {
            if !self.no_warmup {
                pass.shortened(WARM_UP).warm_up(session)?;
            }
            for measured in pass.measure(session, self.repetitions as usize)? {
                let Spread { median, min, max } = measured.tokens_per_second;
                progress.say(&format!(
                    "{} {}: {} tok/s ({} – {})",
                    precision.as_str(),
                    measured.name(),
                    number(median),
                    number(min),
                    number(max),
                ));
                tests.push(measured);
            }
        }
        Ok(tests)
    }

    fn breakdowns(
        &self,
        session: &mut dyn InferenceSession,
        passes: &[Pass],
    ) -> Result<Vec<profile::Breakdown>> {
        let mut breakdowns = Vec::new();
        for pass in passes {
            if !self.no_warmup {
                pass.shortened(WARM_UP).warm_up(session)?;
            }
            breakdowns.extend(profile::profile(pass, session)?);
        }
        Ok(breakdowns)
    }
}

/// What came of each of `precisions`, as far as there is something, and the exit code: one that fails ends
/// nothing but itself.
fn measured<T>(
    precisions: &[Precision],
    measure: impl Fn(Precision) -> Result<Option<T>>,
) -> (Vec<T>, u8) {
    let (mut runs, mut code) = (Vec::new(), 0);
    for precision in precisions {
        match measure(*precision) {
            Ok(Some(run)) => runs.push(run),
            Ok(None) => return (runs, interrupt::EXIT),
            Err(error) => {
                crate::report_error(&error);
                code = 1;
            }
        }
        // This process alone may have got it.
        if interrupt::stopped() {
            return (runs, interrupt::EXIT);
        }
    }
    (runs, code)
}

/// Measures `precision` as this very command line asks, in a process of its own: its peak of
/// memory is then its own. `None` when Ctrl-C ended it.
fn in_own_process<T: DeserializeOwned>(precision: Precision) -> Result<Option<T>> {
    let program = std::env::current_exe().context("cannot find this program to start it again")?;
    let mut command = Command::new(program);
    command.args(std::env::args_os().skip(1)).args(["--only", precision.as_str()]);
    command.stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = command.output().context("cannot start this program again")?;
    // One that was about to start dies of the signal itself.
    #[cfg(unix)]
    let died = output.status.signal() == Some(interrupt::SIGINT);
    #[cfg(not(unix))]
    let died = false;
    if died || output.status.code() == Some(interrupt::EXIT.into()) {
        return Ok(None);
    }
    ensure!(output.status.success(), "measuring {} failed: see above", precision.as_str());
    let run = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("measuring {} gave no JSON", precision.as_str()))?;
    Ok(Some(run))
}

/// `observer`, which also counts the graphs that are compiled.
fn counting(observer: Observer, compiled: Arc<AtomicUsize>) -> Observer {
    Arc::new(move |event| {
        if let Event::Compiled { .. } = event {
            compiled.fetch_add(1, Ordering::Relaxed);
        }
        observer(event);
    })
}

/// A number of tokens, of which some can be added up.
fn tokens(text: &str) -> Result<usize, String> {
    text.trim().parse::<u32>().map(|tokens| tokens as usize).map_err(|error| error.to_string())
}

fn prompt_and_generate(text: &str) -> Result<(usize, usize), String> {
    let numbers: Vec<_> = text.split(',').map(tokens).collect();
    match numbers[..] {
        [Ok(prompt @ 1..), Ok(generate @ 1..)] => Ok((prompt, generate)),
        _ => Err("give two numbers of tokens, each at least 1: 2048,32".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn passes(line: &[&str]) -> Vec<(usize, usize, usize)> {
        let line = Line::parse_from(["bench"].iter().chain(line));
        let passes = line.args.passes().into_iter();
        passes.map(|Pass { depth, prompt, generate }| (depth, prompt, generate)).collect()
    }

    #[test]
    fn every_prompt_and_count_at_every_depth() {
        assert_eq!(passes(&[]), [(0, 512, 0), (0, 0, 128)]);
        assert_eq!(
            passes(&["-p", "8,16", "-n", "4", "-d", "0,32"]),
            [(0, 8, 0), (0, 16, 0), (0, 0, 4), (32, 8, 0), (32, 16, 0), (32, 0, 4)]
        );
        assert_eq!(passes(&["-p", "0", "-n", "0", "--pg", "64,3"]), [(0, 64, 3)]);
        assert!(passes(&["-p", "0", "-n", "0"]).is_empty());
    }

    #[test]
    fn what_is_measured_stays_when_another_precision_fails() {
        let all = [Precision::Stored, Precision::Int8, Precision::Int4];
        let with = |of: Precision, end: fn() -> Result<Option<&'static str>>| {
            measured(&all, |it| if it == of { end() } else { Ok(Some(it.as_str())) })
        };
        let failed = with(Precision::Int8, || anyhow::bail!("too small"));
        assert_eq!(failed, (vec!["stored", "int4"], 1));
        let interrupted = with(Precision::Int8, || Ok(None));
        assert_eq!(interrupted, (vec!["stored"], interrupt::EXIT));
    }

    #[test]
    fn numbers_of_tokens_can_be_added_up() {
        assert_eq!(tokens(" 512"), Ok(512));
        assert!(tokens("18446744073709551615").is_err());
        assert!(prompt_and_generate("1,18446744073709551615").is_err());
    }

    #[test]
    fn pairs_are_two_positive_numbers() {
        assert_eq!(prompt_and_generate("64, 3"), Ok((64, 3)));
        for wrong in ["", "64", "64,0", "0,3", "a,b", "1,2,3"] {
            assert!(prompt_and_generate(wrong).is_err(), "{wrong}");
        }
    }
}

//! The two programs in turn.
//!
//! Each measurement is a process of its own, ours and llama.cpp's alternating, so that whatever
//! else the machine does in these minutes hits both alike.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::model::{Format, Model};
use super::python;
use super::sample::{Run, Samples};

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Rounds, unless the command line says otherwise.
    pub rounds: u32,
    /// Tokens of the short prompt.
    pub short: usize,
    /// Tokens of the long prompt, which is the context of the long decode test.
    pub long: usize,
    /// Tokens generated after nothing and after the long prompt.
    pub generate: usize,
    /// Repetitions of the short tests in each round; the long ones run once.
    pub repetitions: usize,
}

impl Plan {
    /// What the documentation's table is made with.
    pub const FULL: Self = Self { rounds: 3, short: 256, long: 2048, generate: 32, repetitions: 3 };
    /// A few minutes; for seeing that everything works.
    pub const QUICK: Self = Self { rounds: 1, short: 64, long: 256, generate: 8, repetitions: 2 };
}

/// Tokens of the prompt whose first answer is timed.
pub const FIRST: usize = 5;

/// How llama.cpp is run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LlamaSettings {
    /// Its fused attention.
    pub flash_attention: bool,
    /// Whether weights are mapped (its default) or read, into memory that may use huge pages.
    pub mmap: bool,
}

impl LlamaSettings {
    const ALL: [Self; 4] = [
        Self { flash_attention: true, mmap: true },
        Self { flash_attention: false, mmap: true },
        Self { flash_attention: true, mmap: false },
        Self { flash_attention: false, mmap: false },
    ];
}

impl std::fmt::Display for LlamaSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let attention = if self.flash_attention { "on" } else { "off" };
        write!(f, "flash attention {attention}, mmap {}", if self.mmap { "on" } else { "off" })
    }
}

/// Which program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// This project's.
    Ours,
    /// llama.cpp, with its fastest settings.
    Llama,
    /// llama.cpp with its weights mapped, as it starts fastest; only started.
    LlamaMapped,
}

impl Side {
    /// The program's name.
    fn name(self) -> &'static str {
        match self {
            Self::Ours => "iree-llm",
            Self::Llama => "llama.cpp",
            Self::LlamaMapped => "llama.cpp, mapped",
        }
    }
}

/// What was prepared for a precision.
#[derive(Debug)]
pub struct Prepared {
    /// The precision.
    pub format: &'static Format,
    /// llama.cpp's fastest settings.
    pub settings: LlamaSettings,
    /// Graphs that our first start compiled.
    pub compiled_graphs: f64,
    /// Seconds that it took.
    pub compile_s: f64,
}

/// Measurements of one precision with one number of threads.
#[derive(Debug)]
pub struct Entry {
    /// The precision.
    pub format: &'static str,
    /// Threads of both programs.
    pub threads: usize,
    /// The process that was measured.
    pub side: Side,
    /// What it printed.
    pub run: Run,
}

/// Programs, model, and all that was measured so far.
pub struct Contest {
    program: PathBuf,
    python: PathBuf,
    /// The model of both.
    pub model: Model,
    cache: PathBuf,
    /// How much is measured.
    pub plan: Plan,
    /// By precision, in the order of the command line.
    pub prepared: Vec<Prepared>,
    /// In the order of measurement.
    pub entries: Vec<Entry>,
}

impl Contest {
    /// `program` is `iree-llm`, `cache` the folder of its compiled graphs, which is emptied.
    pub fn new(
        program: PathBuf,
        python: PathBuf,
        model: Model,
        cache: PathBuf,
        plan: Plan,
    ) -> Self {
        // So that the first start is one; a folder that is not there is as good.
        let _ = std::fs::remove_dir_all(&cache);
        Self { program, python, model, cache, plan, prepared: Vec::new(), entries: Vec::new() }
    }

    /// Compiles our graphs and finds llama.cpp's best settings for `format`.
    ///
    /// # Errors
    ///
    /// A program fails.
    pub fn prepare(&mut self, format: &'static Format, threads: usize) -> Result<()> {
        let short = tests(&[FIRST], &[], 1);
        let first = self.ours(format, threads, &short)?;
        let again = self.ours(format, threads, &short)?;
        ensure!(
            again.number("/start/compiled_graphs") == Some(0.0),
            "the second start of iree-llm compiled graphs again"
        );
        let (prompt, generate) = (self.plan.short, self.plan.generate);
        let probe = both(prompt, generate, 1);
        let mut best = None;
        for settings in LlamaSettings::ALL {
            let run = self.llama(format, settings, threads, &probe)?;
            let seconds = |test: String, depth| run.seconds(&test, depth).iter().sum::<f64>();
            // The product weighs a percent of either alike.
            let cost = seconds(format!("pp{prompt}"), 0) * seconds(format!("tg{generate}"), prompt);
            eprintln!("{}: {settings}: {}", format.name, rates(&run));
            if best.is_none_or(|(least, _)| cost < least) {
                best = Some((cost, settings));
            }
        }
        let (_, settings) = best.context("llama.cpp has no settings")?;
        self.prepared.push(Prepared {
            format,
            settings,
            compiled_graphs: first.require("/start/compiled_graphs")?,
            compile_s: first.require("/start/compile_s")?,
        });
        Ok(())
    }

    /// Measures both programs once, alternating.
    ///
    /// # Errors
    ///
    /// A program fails.
    pub fn round(&mut self, format: &'static Format, threads: usize) -> Result<()> {
        let Plan { short, long, generate, repetitions, .. } = self.plan;
        let prepared = self.prepared.iter().find(|it| it.format == format);
        let settings = prepared.context("a precision that was not prepared")?.settings;
        let groups = [tests(&[FIRST, short], &[generate], repetitions), both(long, generate, 1)];
        for group in groups {
            for side in [Side::Ours, Side::Llama] {
                let run = match side {
                    Side::Ours => self.ours(format, threads, &group)?,
                    _ => self.llama(format, settings, threads, &group)?,
                };
                self.note(format, threads, side, run);
            }
        }
        if !settings.mmap {
            let mapped = LlamaSettings { mmap: true, ..settings };
            let run = self.llama(format, mapped, threads, &tests(&[FIRST], &[], 1))?;
            self.note(format, threads, Side::LlamaMapped, run);
        }
        Ok(())
    }

    fn note(&mut self, format: &Format, threads: usize, side: Side, run: Run) {
        eprintln!("{:5} {:9} {}", format.name, side.name(), rates(&run));
        self.entries.push(Entry { format: format.name, threads, side, run });
    }

    fn ours(&self, format: &Format, threads: usize, tests: &[String]) -> Result<Run> {
        self.model.warm_folder()?;
        let mut command = Command::new(&self.program);
        // A user's settings are not what is measured.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("IREE_LLM_") {
                command.env_remove(name);
            }
        }
        command.args(["bench", "--json", "--quiet", "--precision", format.precision]);
        command.arg("--model").arg(self.model.folder()).arg("--cache-dir").arg(&self.cache);
        command.args(["--threads", &threads.to_string()]).args(tests);
        let runs = json_of(&mut command)?;
        Ok(Run(runs.get(0).cloned().context("iree-llm bench printed no measurement")?))
    }

    fn llama(
        &self,
        format: &Format,
        settings: LlamaSettings,
        threads: usize,
        tests: &[String],
    ) -> Result<Run> {
        self.model.warm_gguf(format)?;
        let mut command = Command::new(&self.python);
        command.arg(python::script("llama.py")).arg(self.model.gguf(format));
        command.args(["--threads", &threads.to_string()]).args(tests);
        command.args(["--flash-attn", if settings.flash_attention { "on" } else { "off" }]);
        if !settings.mmap {
            command.arg("--no-mmap");
        }
        Ok(Run(json_of(&mut command)?))
    }

    /// Seconds of all repetitions of `test` at `depth`.
    pub fn seconds(
        &self,
        format: &str,
        threads: usize,
        side: Side,
        test: (&str, usize),
    ) -> Samples {
        let mut samples = Samples::default();
        for run in self.runs(format, threads, side) {
            samples.extend(run.seconds(test.0, test.1));
        }
        samples
    }

    /// The number at `pointer` of every process.
    pub fn numbers(&self, format: &str, threads: usize, side: Side, pointer: &str) -> Samples {
        let mut samples = Samples::default();
        samples.extend(self.runs(format, threads, side).filter_map(|run| run.number(pointer)));
        samples
    }

    /// Prompts after which the two programs predicted the same token, and all prompts.
    pub fn agreement(&self, format: &str) -> (usize, usize) {
        let of = |side| {
            let entries =
                self.entries.iter().filter(move |it| it.format == format && it.side == side);
            entries.flat_map(|it| it.run.next_tokens()).collect::<BTreeMap<_, _>>()
        };
        let (ours, llama) = (of(Side::Ours), of(Side::Llama));
        let same = ours.iter().filter(|(test, token)| llama.get(*test) == Some(token)).count();
        (same, ours.len())
    }

    fn runs(&self, format: &str, threads: usize, side: Side) -> impl Iterator<Item = &Run> {
        let wanted =
            move |it: &&Entry| it.format == format && it.threads == threads && it.side == side;
        self.entries.iter().filter(wanted).map(|it| &it.run)
    }

    /// Everything that was measured.
    ///
    /// # Errors
    ///
    /// None that is known.
    pub fn json(&self) -> Result<String> {
        let entry = |it: &Entry| {
            let program = it.side.name();
            json!({"format": it.format, "threads": it.threads, "program": program, "run": it.run.0})
        };
        let entries: Vec<Value> = self.entries.iter().map(entry).collect();
        Ok(serde_json::to_string_pretty(&entries)?)
    }
}

/// Arguments that both programs take: prompts and generated tokens, each for itself.
fn tests(prompts: &[usize], generate: &[usize], repetitions: usize) -> Vec<String> {
    let list = |numbers: &[usize]| {
        if numbers.is_empty() {
            return "0".to_owned();
        }
        numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
    };
    let repetitions = repetitions.to_string();
    ["-p", &list(prompts), "-n", &list(generate), "-r", &repetitions].map(String::from).to_vec()
}

/// Arguments that both programs take: a prompt and then generated tokens.
fn both(prompt: usize, generate: usize, repetitions: usize) -> Vec<String> {
    let mut arguments = tests(&[], &[], repetitions);
    arguments.extend(["--pg".to_owned(), format!("{prompt},{generate}")]);
    arguments
}

/// "pp256 64.1, tg32 8.2 tok/s".
fn rates(run: &Run) -> String {
    let tests = run.0["tests"].as_array().map_or(&[][..], Vec::as_slice);
    let rate = |it: &Value| {
        let median = it["tokens_per_second"]["median"].as_f64().unwrap_or(0.0);
        format!("{} {median:.2}", it["test"].as_str().unwrap_or("?"))
    };
    tests.iter().map(rate).collect::<Vec<_>>().join(", ") + " tok/s"
}

fn json_of(command: &mut Command) -> Result<Value> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot run {program}"))?;
    ensure!(output.status.success(), "{program} failed ({}); see above", output.status);
    serde_json::from_slice(&output.stdout)
        .with_context(|| format!("{program} printed no JSON: it should print one value"))
}

#[cfg(test)]
mod tests_of_contest {
    use super::*;

    #[test]
    fn both_programs_get_the_same_arguments() {
        assert_eq!(tests(&[5, 256], &[32], 3).join(" "), "-p 5,256 -n 32 -r 3");
        assert_eq!(both(2048, 32, 1).join(" "), "-p 0 -n 0 -r 1 --pg 2048,32");
    }

    #[test]
    fn rates_read_well() {
        let run = Run(json!({"tests": [
            {"test": "pp5", "tokens_per_second": {"median": 12.3456}},
            {"test": "tg4", "tokens_per_second": {"median": 8.0}},
        ]}));
        assert_eq!(rates(&run), "pp5 12.35, tg4 8.00 tok/s");
    }

    #[test]
    fn what_is_no_json_says_who_printed_it() {
        let error = json_of(Command::new("echo").arg("hello")).unwrap_err();
        assert!(format!("{error:#}").contains("echo printed no JSON"), "{error:#}");
        let error = json_of(&mut Command::new("false")).unwrap_err();
        assert!(error.to_string().contains("false failed"), "{error}");
    }
}

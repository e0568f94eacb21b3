//! The two programs, and how each is run: every measurement is a process of its own.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::llama_cpp::LlamaCpp;
use super::model::{Format, Model, forget, warm};
use super::sample::Run;

/// How llama.cpp is run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LlamaSettings {
    /// Its fused attention.
    pub flash_attention: bool,
    /// Whether weights are mapped (its default) or read, into memory that may use huge pages.
    pub mmap: bool,
}

impl LlamaSettings {
    /// Every combination.
    pub const ALL: [Self; 4] = [
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

/// An `iree-llm` and where it keeps its compiled graphs.
struct IreeLlm {
    program: PathBuf,
    cache: PathBuf,
}

impl IreeLlm {
    /// Empties `cache`, so that the first start is one.
    fn new(program: PathBuf, cache: PathBuf) -> Self {
        // A folder that is not there is as good.
        let _ = std::fs::remove_dir_all(&cache);
        Self { program, cache }
    }

    /// Drops its packed weights from the page cache.
    fn forget(&self) {
        let files = std::fs::read_dir(&self.cache).into_iter().flatten().flatten();
        let weights =
            files.map(|it| it.path()).filter(|it| it.extension().is_some_and(|it| it == "weights"));
        weights.for_each(|it| forget(&it));
    }

    fn bench(&self, model: &Path, format: &Format, threads: usize, tests: &[String]) -> Command {
        let mut command = self.command("bench", model, format.name, threads);
        command.arg("--quiet").args(tests);
        command
    }

    fn command(&self, what: &str, model: &Path, precision: &str, threads: usize) -> Command {
        let mut command = Command::new(&self.program);
        // A user's settings are not what is measured.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("IREE_LLM_") {
                command.env_remove(name);
            }
        }
        command.args([what, "--precision", precision, "--threads", &threads.to_string()]);
        command.arg("--model").arg(model).arg("--cache-dir").arg(&self.cache);
        command
    }
}

/// A model that both servers have.
#[derive(Debug, Clone)]
pub struct Served {
    /// What tables call it, ours and llama.cpp's.
    pub name: String,
    /// What `iree-llm` loads, and how.
    ours: PathBuf,
    precision: &'static str,
    /// What `llama-server` loads.
    llama: PathBuf,
}

impl Served {
    /// A GGUF file, for both.
    pub fn file(path: &Path) -> Self {
        let name = path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        Self { name, ours: path.to_owned(), precision: "stored", llama: path.to_owned() }
    }
}

/// The programs and the model that they run.
pub struct Programs {
    ours: IreeLlm,
    baseline: Option<IreeLlm>,
    llama: LlamaCpp,
    /// The model of all.
    pub model: Model,
}

impl Programs {
    /// `program` is `iree-llm`, `baseline` another one; their caches are emptied, which lie in
    /// `folder`.
    pub fn new(
        program: PathBuf,
        baseline: Option<PathBuf>,
        llama: LlamaCpp,
        model: Model,
        folder: &Path,
    ) -> Self {
        Self {
            ours: IreeLlm::new(program, folder.join("compiled")),
            baseline: baseline.map(|it| IreeLlm::new(it, folder.join("compiled-baseline"))),
            llama,
            model,
        }
    }

    /// Whether there is another `iree-llm`.
    pub fn has_baseline(&self) -> bool {
        self.baseline.is_some()
    }

    /// Runs `tests` in `iree-llm`.
    ///
    /// # Errors
    ///
    /// It fails.
    pub fn ours(&self, format: &Format, threads: usize, tests: &[String]) -> Result<Run> {
        self.iree_llm(&self.ours, format, threads, tests)
    }

    /// As [`ours`](Self::ours), after a start that is forgotten, so that its weights lie in the page cache, in
    /// [other pages](forget) than before.
    ///
    /// # Errors
    ///
    /// It fails.
    pub fn ours_warm(&self, format: &Format, threads: usize, tests: &[String]) -> Result<Run> {
        self.warm(&self.ours, format, threads, tests)
    }

    /// Runs `tests` in `iree-llm` `turns` times, in all of `formats` in every turn.
    ///
    /// # Errors
    ///
    /// It fails.
    pub fn ours_in_turns(
        &self,
        formats: &[&'static Format],
        threads: usize,
        turns: usize,
        tests: &[String],
    ) -> Result<Vec<(&'static Format, Vec<Run>)>> {
        let mut runs: Vec<_> = formats.iter().map(|&format| (format, Vec::new())).collect();
        for turn in 1..=turns {
            for (format, runs) in &mut runs {
                eprintln!("==> turn {turn} of {turns}: {}, {}", format.name, tests.join(" "));
                runs.push(self.ours_warm(format, threads, tests)?);
            }
        }
        Ok(runs)
    }

    /// As [`ours_warm`](Self::ours_warm), in the other `iree-llm`.
    ///
    /// # Errors
    ///
    /// It fails, or there is none.
    pub fn baseline_warm(&self, format: &Format, threads: usize, tests: &[String]) -> Result<Run> {
        let baseline = self.baseline.as_ref().context("no --baseline was given")?;
        self.warm(baseline, format, threads, tests)
    }

    fn warm(
        &self,
        which: &IreeLlm,
        format: &Format,
        threads: usize,
        tests: &[String],
    ) -> Result<Run> {
        which.forget();
        self.model.warm_folder(format)?;
        self.iree_llm(which, format, threads, &self::tests(&[1], &[], 1))?;
        self.iree_llm(which, format, threads, tests)
    }

    fn iree_llm(
        &self,
        which: &IreeLlm,
        format: &Format,
        threads: usize,
        tests: &[String],
    ) -> Result<Run> {
        let mut command = which.bench(&self.model.folder(format), format, threads, tests);
        let runs = json_of(command.arg("--json"))?;
        let run = runs.get(0).cloned();
        Ok(Run(run.with_context(|| {
            format!("{} bench printed no measurement", which.program.display())
        })?))
    }

    /// What `iree-llm` says about where the time of `tests` goes; the events go to `file`.
    ///
    /// # Errors
    ///
    /// It fails.
    pub fn profile(
        &self,
        format: &Format,
        threads: usize,
        tests: &[String],
        file: &Path,
    ) -> Result<String> {
        let mut command = self.ours.bench(&self.model.folder(format), format, threads, tests);
        let output = output_of(command.arg("--profile").arg(file))?;
        String::from_utf8(output).context("iree-llm bench printed no text")
    }

    /// Runs `tests` in llama.cpp.
    ///
    /// # Errors
    ///
    /// It fails.
    pub fn llama(
        &self,
        format: &Format,
        settings: LlamaSettings,
        threads: usize,
        tests: &[String],
    ) -> Result<Run> {
        self.model.warm_gguf(format)?;
        let mut command = self.llama.script("llama.py");
        command.arg(self.model.gguf(format));
        command.args(["--threads", &threads.to_string()]).args(tests);
        command.args(["--flash-attn", if settings.flash_attention { "on" } else { "off" }]);
        if !settings.mmap {
            command.arg("--no-mmap");
        }
        Ok(Run(json_of(&mut command)?))
    }

    /// What `llama-batched-bench` prints when it is given `arguments`.
    ///
    /// # Errors
    ///
    /// It fails.
    pub fn llama_batched(
        &self,
        format: &Format,
        settings: LlamaSettings,
        threads: usize,
        arguments: &[String],
    ) -> Result<String> {
        self.model.warm_gguf(format)?;
        let mut command = self.llama.batched_bench();
        command.arg("-m").arg(self.model.gguf(format)).args(["-t", &threads.to_string()]);
        command.args(["-fa", if settings.flash_attention { "on" } else { "off" }]);
        command.args(["-lm", if settings.mmap { "mmap" } else { "none" }]);
        // Results and errors.
        command.args(["--output-format", "jsonl", "-lv", "1"]).args(arguments);
        String::from_utf8(output_of(&mut command)?).context("llama-batched-bench printed no text")
    }

    /// The model in `format`, for servers.
    pub fn served(&self, format: &Format) -> Served {
        Served {
            name: format!("{} / {}", format.name, format.llama),
            ours: self.model.folder(format),
            precision: format.name,
            llama: self.model.gguf(format),
        }
    }

    /// `iree-llm serve`, for `clients` at once.
    pub fn our_server(&self, model: &Served, threads: usize, clients: usize, port: u16) -> Command {
        let mut command = self.ours.command("serve", &model.ours, model.precision, threads);
        command.args(["--log", "error", "--parallel", &clients.to_string()]);
        command.args(["--port", &port.to_string()]);
        command
    }

    /// `llama-server`, for `clients` at once with `context` tokens each.
    ///
    /// # Errors
    ///
    /// Its model cannot be read.
    pub fn llama_server(
        &self,
        model: &Served,
        threads: usize,
        clients: usize,
        context: usize,
        port: u16,
    ) -> Result<Command> {
        warm(&model.llama)?;
        let mut command = self.llama.server();
        command.arg("-m").arg(&model.llama).args(["-t", &threads.to_string()]);
        // It gives each sequence a multiple of 256.
        let context = clients * context.next_multiple_of(256);
        command.args(["-np", &clients.to_string(), "-c", &context.to_string()]);
        command.args(SERVER_SETTINGS);
        command.args(["--no-ui", "-lv", "1", "--port", &port.to_string()]);
        Ok(command)
    }
}

/// Settings of `llama-server`, which are the same for every model: its fastest are not searched for.
pub const SERVER_SETTINGS: [&str; 4] = ["-fa", "on", "-lm", "mmap"];

/// Arguments that both programs take: prompts and generated tokens, each for itself.
pub fn tests(prompts: &[usize], generate: &[usize], repetitions: usize) -> Vec<String> {
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
pub fn both(prompt: usize, generate: usize, repetitions: usize) -> Vec<String> {
    let mut arguments = tests(&[], &[], repetitions);
    arguments.extend(["--pg".to_owned(), format!("{prompt},{generate}")]);
    arguments
}

fn json_of(command: &mut Command) -> Result<Value> {
    let output = output_of(command)?;
    let program = command.get_program().to_string_lossy();
    serde_json::from_slice(&output)
        .with_context(|| format!("{program} printed no JSON: it should print one value"))
}

fn output_of(command: &mut Command) -> Result<Vec<u8>> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot run {program}"))?;
    ensure!(output.status.success(), "{program} failed ({}); see above", output.status);
    Ok(output.stdout)
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn both_programs_get_the_same_arguments() {
        assert_eq!(tests(&[5, 256], &[32], 3).join(" "), "-p 5,256 -n 32 -r 3");
        assert_eq!(both(2048, 32, 1).join(" "), "-p 0 -n 0 -r 1 --pg 2048,32");
    }

    #[test]
    fn what_is_no_json_says_who_printed_it() {
        let error = json_of(Command::new("echo").arg("hello")).unwrap_err();
        assert!(format!("{error:#}").contains("echo printed no JSON"), "{error:#}");
        let error = json_of(&mut Command::new("false")).unwrap_err();
        assert!(error.to_string().contains("false failed"), "{error}");
    }
}

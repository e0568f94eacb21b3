//! The two programs, and how each is run: every measurement is a process of its own.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::model::{Format, Model};
use super::python;
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

/// Both programs and the model that they run.
pub struct Programs {
    program: PathBuf,
    python: PathBuf,
    /// The model of both.
    pub model: Model,
    cache: PathBuf,
}

impl Programs {
    /// `program` is `iree-llm`, `cache` the folder of its compiled graphs, which is emptied.
    pub fn new(program: PathBuf, python: PathBuf, model: Model, cache: PathBuf) -> Self {
        // So that the first start is one; a folder that is not there is as good.
        let _ = std::fs::remove_dir_all(&cache);
        Self { program, python, model, cache }
    }

    /// Starts `iree-llm` and forgets it, so that its packed weights lie in the page cache.
    ///
    /// # Errors
    ///
    /// It fails.
    pub fn warm_ours(&self, format: &Format, threads: usize) -> Result<()> {
        self.ours(format, threads, &tests(&[1], &[], 1)).map(drop)
    }

    /// Runs `tests` in `iree-llm`.
    ///
    /// # Errors
    ///
    /// It fails.
    pub fn ours(&self, format: &Format, threads: usize, tests: &[String]) -> Result<Run> {
        let runs = json_of(self.bench(format, threads, tests).arg("--json"))?;
        Ok(Run(runs.get(0).cloned().context("iree-llm bench printed no measurement")?))
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
        let output = output_of(self.bench(format, threads, tests).arg("--profile").arg(file))?;
        String::from_utf8(output).context("iree-llm bench printed no text")
    }

    fn bench(&self, format: &Format, threads: usize, tests: &[String]) -> Command {
        let mut command = Command::new(&self.program);
        // A user's settings are not what is measured.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("IREE_LLM_") {
                command.env_remove(name);
            }
        }
        command.args(["bench", "--quiet", "--precision", format.name]);
        command.arg("--model").arg(self.model.folder(format)).arg("--cache-dir").arg(&self.cache);
        command.args(["--threads", &threads.to_string()]).args(tests);
        command
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
        let mut command = Command::new(&self.python);
        command.arg(python::script("llama.py")).arg(self.model.gguf(format));
        command.args(["--threads", &threads.to_string()]).args(tests);
        command.args(["--flash-attn", if settings.flash_attention { "on" } else { "off" }]);
        if !settings.mmap {
            command.arg("--no-mmap");
        }
        Ok(Run(json_of(&mut command)?))
    }
}

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

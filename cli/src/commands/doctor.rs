//! `iree-llm doctor`: check what running a model needs.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use clap::ArgAction;
use clap::builder::FalseyValueParser;
use serde::Serialize;
use xla_session::LoadMode;
use xla_session::cache::Cache;
use xla_session::checkpoint::Checkpoint;

use crate::engine::CompileArgs;
use crate::model_source::{Model, ModelArgs};

/// How to print it, and what to look at.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  iree-llm doctor
  iree-llm doctor -m ./Llama-3.2-1B
  iree-llm doctor --json | jq '.checks[] | select(.state == \"problem\")'

A line says ok, note (something you may miss) or PROBLEM, with what to do about it. The exit code \
is 1 when there is a problem. Nothing is fetched.")]
pub struct Args {
    /// Print one JSON object
    #[arg(long, env = "IREE_LLM_JSON", value_parser = FalseyValueParser::new(),
          action = ArgAction::SetTrue)]
    json: bool,

    #[command(flatten)]
    model: ModelArgs,

    #[command(flatten)]
    compile: CompileArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Ok,
    Note,
    Problem,
}

#[derive(Debug, Serialize)]
struct Check {
    name: &'static str,
    state: State,
    /// What was found.
    found: String,
    /// What to do about it.
    #[serde(rename = "do", skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, state: State::Ok, found: found.into(), advice: None }
    }

    fn note(name: &'static str, found: impl Into<String>, advice: &str) -> Self {
        Self { name, state: State::Note, found: found.into(), advice: Some(advice.into()) }
    }

    fn problem(name: &'static str, found: impl Into<String>, advice: &str) -> Self {
        Self { name, state: State::Problem, found: found.into(), advice: Some(advice.into()) }
    }
}

#[derive(Debug, Serialize)]
struct Findings {
    ok: bool,
    version: &'static str,
    checks: Vec<Check>,
}

impl Args {
    /// Checks.
    pub fn run(self) -> Result<ExitCode> {
        let mut checks = engine(&self.compile);
        checks.push(cpu());
        checks.push(cache(self.compile.cache.folder().as_deref()));
        checks.push(model(self.model.locate_here(), self.model.model.is_some()));
        let ok = checks.iter().all(|check| check.state != State::Problem);
        let findings = Findings { ok, version: env!("CARGO_PKG_VERSION"), checks };
        let text = if self.json {
            serde_json::to_string_pretty(&findings)? + "\n"
        } else {
            findings.checks.iter().map(line).collect()
        };
        std::io::stdout().write_all(text.as_bytes())?;
        Ok(if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

fn line(check: &Check) -> String {
    let state = match check.state {
        State::Ok => "ok",
        State::Note => "note",
        State::Problem => "PROBLEM",
    };
    let mut text = format!("{state:<8} {:<9} {}\n", check.name, check.found);
    if let Some(advice) = &check.advice {
        text += &format!("{:<18} -> {advice}\n", "");
    }
    text
}

#[cfg(feature = "iree")]
fn engine(compile: &CompileArgs) -> Vec<Check> {
    const AGAIN: &str =
        "install iree-llm again, or build it again after `cargo xtask fetch-iree --force`";

    let mut checks = vec![Check::ok("runtime", format!("IREE {}", iree_rt::IREE_VERSION))];
    let compiler = compile.compiler();
    match &compiler {
        Ok(compiler) => {
            let found =
                format!("{} ({})", compiler.path().display(), first_line(compiler.version()));
            checks.push(match compiler.version().contains(iree_rt::IREE_VERSION) {
                true => Check::ok("compiler", found),
                false => Check::problem("compiler", found, "use the version of the runtime"),
            });
        }
        Err((error, fix)) => checks.push(Check::problem("compiler", error.to_string(), fix)),
    }
    match iree_rt::Instance::get().and_then(|instance| instance.drivers()) {
        Ok(drivers) => {
            checks.extend(drivers.iter().map(|driver| match driver.devices() {
                Ok(devices) if !devices.is_empty() => {
                    let uris: Vec<_> = devices.iter().map(|device| device.uri.as_str()).collect();
                    Check::ok("driver", format!("{}: {}", driver.name, uris.join(", ")))
                }
                Ok(_) => Check::note(
                    "driver",
                    format!("{}: no device", driver.name),
                    "fine, unless this machine should have one",
                ),
                Err(error) => Check::note(
                    "driver",
                    format!("{}: {}", driver.name, first_line(&error.to_string())),
                    "fine, unless this machine should have such a device: then install its driver",
                ),
            }));
            // Said in one sentence of the driver's own, when it is built in.
            for (name, available, fine) in [
                ("cuda", iree_rt::cuda::available(), "fine, unless there is an NVIDIA GPU"),
                (
                    "vulkan",
                    iree_rt::vulkan::available(),
                    "fine, unless there is a GPU of another make",
                ),
            ] {
                if !drivers.iter().any(|driver| driver.name == name)
                    && let Err(error) = available
                {
                    checks.push(Check::note("driver", format!("{name}: {error}"), fine));
                }
            }
        }
        Err(error) => checks.push(Check::problem("driver", error.to_string(), AGAIN)),
    }
    if let Ok(compiler) = &compiler {
        checks.push(match crate::selftest::add(compiler, "local-task") {
            Ok(sum) => Check::ok("addition", format!("compiled, loaded, called: {sum:?}")),
            Err(error) => Check::problem("addition", crate::chain(&error), AGAIN),
        });
    }
    checks
}

#[cfg(not(feature = "iree"))]
fn engine(_: &CompileArgs) -> Vec<Check> {
    vec![Check::problem("runtime", "built without IREE", "build it with the default features")]
}

#[cfg(feature = "iree")]
fn first_line(text: &str) -> &str {
    text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default()
}

fn cpu() -> Check {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let arch = std::env::consts::ARCH;
    #[cfg(target_arch = "x86_64")]
    {
        macro_rules! found {
            ($($feature:tt)*) => {
                [$(($feature, std::arch::is_x86_feature_detected!($feature))),*]
            };
        }
        let features = found!("avx2" "fma" "f16c" "avx512f" "avx512bw" "avx512vnni" "avx512bf16");
        let names: Vec<_> = features.iter().filter(|it| it.1).map(|it| it.0).collect();
        let kernels = xla_session::kernels::Isa::detect().as_str();
        let text = format!("{arch}, {cores} threads, {}; kernels for {kernels}", names.join(" "));
        if !names.contains(&"avx2") {
            return Check::note("cpu", text, "it will be slow: there is no AVX2");
        }
        Check::ok("cpu", text)
    }
    #[cfg(target_arch = "aarch64")]
    {
        macro_rules! found {
            ($($feature:tt)*) => {
                [$(($feature, std::arch::is_aarch64_feature_detected!($feature))),*]
            };
        }
        let features = found!("neon" "dotprod" "i8mm" "bf16" "sve");
        let names: Vec<_> = features.iter().filter(|it| it.1).map(|it| it.0).collect();
        let text = format!("{arch}, {cores} threads, {}", names.join(" "));
        if !names.contains(&"dotprod") {
            return Check::note(
                "cpu",
                text,
                "int8 and int4 will be slow: there is no FEAT_DotProd",
            );
        }
        Check::ok("cpu", text)
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    Check::ok("cpu", format!("{arch}, {cores} threads"))
}

fn cache(folder: Option<&Path>) -> Check {
    const ADVICE: &str = "give a folder that you can write with --cache-dir or IREE_LLM_CACHE_DIR";
    let Some(folder) = folder else {
        return Check::problem("cache", "there is no home folder for it", ADVICE);
    };
    let probe = folder.join(format!(".doctor-{}", std::process::id()));
    let write = || -> Result<u64> {
        let cache = Cache::open(folder)?;
        std::fs::write(&probe, "x")?;
        std::fs::remove_file(&probe)?;
        Ok(cache.total_bytes()?)
    };
    match write() {
        Ok(bytes) => {
            let size = indicatif::BinaryBytes(bytes);
            Check::ok("cache", format!("{}, {size}", folder.display()))
        }
        Err(error) => {
            let what = error.to_string();
            let path = folder.display().to_string();
            let found = if what.contains(&path) { what } else { format!("{path}: {what}") };
            Check::problem("cache", found, ADVICE)
        }
    }
}

/// `named` is whether the user has chosen one.
fn model(found: Result<Model>, named: bool) -> Check {
    const NAME: &str = "model";
    let model = match found {
        Ok(model) => model,
        Err(error) if named => {
            return Check::problem(NAME, crate::chain(&error), "name another with --model");
        }
        Err(error) => return Check::note(NAME, crate::chain(&error), "name one with --model"),
    };
    let Model { name, folder } = &model;
    let check = || -> Result<u64> {
        let (checkpoint, _) = Checkpoint::open_with_config(folder, LoadMode::Mmap)?;
        model.tokenizer()?;
        Ok(checkpoint.total_bytes())
    };
    match check() {
        Ok(bytes) => {
            let size = indicatif::BinaryBytes(bytes);
            Check::ok(NAME, format!("{name}, {size}: {}", folder.display()))
        }
        Err(error) => Check::problem(
            NAME,
            format!("{name}: {}", crate::chain(&error)),
            "restore the folder, or name another with --model",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    #[test]
    fn a_folder_that_cannot_be_written_is_a_problem() {
        let folder = tempfile::tempdir().unwrap();
        let good = cache(Some(&folder.path().join("new")));
        assert_eq!(good.state, State::Ok);
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        let bad = cache(Some(&file));
        assert_eq!(bad.state, State::Problem);
        assert!(bad.found.contains("file") && line(&bad).contains("--cache-dir"), "{bad:?}");
        assert_eq!(cache(None).state, State::Problem);
    }

    #[test]
    fn a_damaged_model_is_a_problem_and_none_is_not() {
        let folder = tempfile::tempdir().unwrap();
        fixture::write_model(folder.path());
        let named = || Model { name: "tiny".into(), folder: folder.path().to_owned() };
        let good = model(Ok(named()), true);
        assert_eq!(good.state, State::Ok, "{good:?}");
        std::fs::write(folder.path().join("model.safetensors"), "short").unwrap();
        let bad = model(Ok(named()), true);
        assert_eq!(bad.state, State::Problem);
        assert!(bad.found.contains("model.safetensors"), "{bad:?}");
        assert_eq!(model(Err(anyhow::anyhow!("none")), false).state, State::Note);
        assert_eq!(model(Err(anyhow::anyhow!("none")), true).state, State::Problem);
    }
}

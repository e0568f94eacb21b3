//! `cargo xtask gpu-check`: a bundle that checks and measures `iree-llm` on a GPU elsewhere.
//!
//! What runs there is `gpu_check/run.py`; what it is measured beside, `gpu_check/hf.py` and the
//! scripts of `bench`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use iree_src::CUDA_HOME_VAR;
use serde_json::{Map, Value};

use crate::dist::{COMPILER, compiler};
use crate::{fetch_iree, flags, workspace};

/// Scripts and configurations, relative to xtask's sources, and where they go.
const FILES: [(&str, &str); 7] = [
    ("gpu_check/run.py", "run.py"),
    ("gpu_check/hf.py", "peers/hf.py"),
    ("bench/model.py", "peers/model.py"),
    ("bench/llama.py", "peers/llama.py"),
    ("gpu_check/models/Llama-3.2-1B.json", "models/Llama-3.2-1B/config.json"),
    ("gpu_check/models/Llama-3.1-8B.json", "models/Llama-3.1-8B/config.json"),
    ("gpu_check/models/tiny.json", "models/tiny/config.json"),
];

/// Where the program lies in the bundle: it looks for the compiler in `../lib/iree-llm`.
const PROGRAM: &str = "bin/iree-llm";

/// The shapes that are measured there, in `models`.
const SHAPES: [&str; 2] = ["Llama-3.2-1B", "Llama-3.1-8B"];

/// The fixtures of models that run on CPUs only, one a line (`xla-session/tests/models/families.rs` compares it).
const ON_CPUS: &str = include_str!("gpu_check/on_cpus.txt");

/// Everything in a bundle.
const PARTS: [&str; 8] = ["run.py", "peers", "models", "fixtures", "bin", "lib", "tests", "graphs"];

/// What `run.py` says of its folder.
const MADE_BY: &str = "`cargo xtask gpu-check` made this folder";

/// Most bytes of an archive without the compiler: what can be sent anywhere.
const LIMIT: u64 = 60_000_000;

pub fn run(flags: &flags::GpuCheck) -> Result<()> {
    let out = std::path::absolute(&flags.bundle)?;
    let archive = [".tar.gz", ".tar.xz"].iter().any(|it| out.to_string_lossy().ends_with(it));
    let folder = if archive { workspace::target_dir()?.join("gpu-check") } else { out.clone() };
    if folder.exists() {
        ensure!(
            is_bundle(&folder)?,
            "{} is there and holds something else: remove it, or name another",
            folder.display()
        );
        fs::remove_dir_all(&folder).with_context(|| folder.display().to_string())?;
    }
    for (from, to) in FILES {
        copy(&workspace::root().join("xtask/src").join(from), &folder.join(to))?;
    }
    let fixtures = fixtures(&folder)?;
    let program = folder.join(PROGRAM);
    let iree = match &flags.program {
        Some(given) => {
            copy(given, &program)?;
            fetch_iree::ensure(&flags.network)?.folder
        }
        None => {
            let iree = fetch_iree::ensure_gpus(&flags.network)?;
            build(&iree, flags.network.offline, &folder)?;
            iree
        }
    };
    if !flags.without_compiler {
        compiler::copy(&iree, &folder.join(COMPILER))?;
    }
    compile(&program, &folder, &fixtures, &flags.target)?;
    reference(&program, &folder.join("models").join(SHAPES[0]))?;

    let bytes = if archive {
        eprintln!("==> packing");
        let parent = folder.parent().context("the folder has a parent")?;
        let name = folder.file_name().context("the folder has a name")?;
        let mut tar = Command::new("tar");
        // By the compression that its name says.
        workspace::run(tar.arg("-caf").arg(&out).arg("-C").arg(parent).arg(name))?;
        fs::metadata(&out)?.len()
    } else {
        size(&folder)?
    };
    println!("{}: {:.1} MB", out.display(), bytes as f64 / 1e6);
    println!("where the GPU is: python3 run.py OUT");
    let most = LIMIT / 1_000_000;
    let bounded = archive && flags.without_compiler;
    ensure!(!bounded || bytes <= LIMIT, "the archive is larger than {most} MB");
    Ok(())
}

/// Whether `folder` is one that this program has made, with nothing of anybody else's beside: results that
/// `run.py` has written into it are worth more than a bundle.
fn is_bundle(folder: &Path) -> Result<bool> {
    let script = fs::read_to_string(folder.join("run.py")).unwrap_or_default();
    if !script.contains(MADE_BY) {
        return Ok(false);
    }
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        if !PARTS.iter().any(|part| entry.as_ref().is_ok_and(|it| it.file_name() == *part)) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Puts the fixtures of models that GPUs run into the bundle; returns where.
fn fixtures(folder: &Path) -> Result<Vec<PathBuf>> {
    let source = workspace::root().join("xla-session/tests/fixtures");
    let mut fixtures = Vec::new();
    for entry in fs::read_dir(&source).with_context(|| source.display().to_string())? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let on_cpus = ON_CPUS.lines().any(|it| it == name);
        if on_cpus || !entry.path().join("reference.json").exists() {
            continue;
        }
        let target = folder.join("fixtures").join(name);
        for file in fs::read_dir(entry.path())? {
            let file = file?;
            copy(&file.path(), &target.join(file.file_name()))?;
        }
        fixtures.push(target);
    }
    fixtures.sort();
    Ok(fixtures)
}

/// Builds the program and the tests that need a GPU with the IREE in `iree`, into the bundle.
fn build(iree: &Path, offline: bool, folder: &Path) -> Result<()> {
    let cargo = |arguments: &[&str]| {
        let mut cargo = workspace::cargo();
        cargo.args(arguments).arg("--release").env(CUDA_HOME_VAR, iree);
        if offline {
            cargo.arg("--offline");
        }
        cargo
    };
    eprintln!("==> building iree-llm with IREE's drivers for CUDA and Vulkan");
    workspace::run(&mut cargo(&["build", "--package=cli"]))?;
    let built = workspace::target_dir()?.join("release").join("iree-llm");
    strip(&built, &folder.join(PROGRAM))?;

    eprintln!("==> building the tests that need a GPU");
    let mut tests = cargo(&["test", "--package=iree-rt", "--features=cuda,vulkan", "--no-run"]);
    tests.args(["--test=cuda", "--test=vulkan", "--message-format=json"]).stderr(Stdio::inherit());
    let output = tests.output().context("cannot run cargo")?;
    ensure!(output.status.success(), "building the tests of iree-rt failed");
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let message: Value = serde_json::from_str(line).unwrap_or_default();
        let name = message["target"]["name"].as_str().unwrap_or_default();
        let is_test = message["target"]["kind"][0] == "test";
        if let (true, Some(program)) = (is_test, message["executable"].as_str()) {
            strip(Path::new(program), &folder.join("tests").join(name))?;
        }
    }
    Ok(())
}

/// Compiles what will be run there on CUDA: the fixtures in f32, those in bf16 also as stored, the shapes
/// in each precision.
fn compile(program: &Path, folder: &Path, fixtures: &[PathBuf], targets: &[String]) -> Result<()> {
    let graphs = folder.join("graphs");
    let targets = targets.join(",");
    let compile = |model: &Path, arguments: &[&str]| {
        eprintln!("==> compiling {}", model.display());
        let mut command = Command::new(program);
        command.arg("compile").arg("--model").arg(model).args(arguments);
        workspace::run(command.args(["--target", &targets]).arg("--cache-dir").arg(&graphs))
    };
    for fixture in fixtures {
        let in_bf16 = fixture.to_string_lossy().ends_with("-bf16");
        compile(fixture, &["--precision", if in_bf16 { "f32,stored" } else { "f32" }])?;
    }
    for shape in SHAPES {
        let model = folder.join("models").join(shape);
        compile(&model, &["--precision", "stored,bf16,int8,int4", "--load-mode", "random"])?;
    }
    Ok(())
}

/// What the CPU here says after the prompts that `run.py` measures there, of the same made-up weights: those
/// that GPUs have in the same bits, and multiply with the same activations.
fn reference(program: &Path, model: &Path) -> Result<()> {
    eprintln!("==> the CPU's tokens for {}", model.display());
    let mut command = Command::new(program);
    command.args(["bench", "--json", "--device", "local-task", "--load-mode", "random"]);
    command.args(["--no-weights-cache", "--precision", "stored,int8", "--prompt", "256,2048"]);
    command.args(["--generate", "0", "--repetitions", "1", "--context", "4096", "--model"]);
    let output =
        command.arg(model).stderr(Stdio::inherit()).output().context("cannot run iree-llm")?;
    ensure!(output.status.success(), "iree-llm bench failed ({})", output.status);
    let measured: Vec<Value> = serde_json::from_slice(&output.stdout)?;
    let mut tokens = Map::new();
    for one in &measured {
        let precision = one["precision"].as_str().context("a precision")?;
        let tests = one["tests"].as_array().context("tests")?.iter();
        let of = |it: &Value| Some((it["test"].as_str()?.to_owned(), it["next_token"].clone()));
        let of_tests: Map<_, _> = tests.filter_map(of).collect();
        tokens.insert(precision.to_owned(), of_tests.into());
    }
    let path = model.join("reference.json");
    fs::write(&path, Value::from(tokens).to_string()).with_context(|| path.display().to_string())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent).with_context(|| parent.display().to_string())?;
    }
    fs::copy(from, to).map(drop).with_context(|| format!("{} to {}", from.display(), to.display()))
}

/// Copies a program without its debug information.
fn strip(from: &Path, to: &Path) -> Result<()> {
    copy(from, to)?;
    match Command::new("strip").arg(to).status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => bail!("strip {} failed ({status})", to.display()),
        // Larger, but it runs.
        Err(_) => Ok(()),
    }
}

fn size(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        bytes += if metadata.is_dir() { size(&entry.path())? } else { metadata.len() };
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_a_bundle_and_no_more_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        assert!(!is_bundle(folder).unwrap());
        fs::write(folder.join("run.py"), "print('my own')").unwrap();
        assert!(!is_bundle(folder).unwrap());
        for (from, to) in FILES {
            copy(&workspace::root().join("xtask/src").join(from), &folder.join(to)).unwrap();
        }
        assert!(is_bundle(folder).unwrap());
        fs::create_dir(folder.join("out")).unwrap();
        assert!(!is_bundle(folder).unwrap());
    }
}

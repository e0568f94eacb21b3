//! llama.cpp for this machine: its library, which Python calls, `llama-batched-bench` and
//! `llama-server`, all out of one native build.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::python;
use crate::{fetch_iree, flags, iree, workspace};

/// llama.cpp, built.
#[derive(Debug)]
pub struct LlamaCpp {
    python: PathBuf,
    /// Its libraries and programs.
    built: PathBuf,
}

impl LlamaCpp {
    /// The Python script `name` beside this file, which finds llama.cpp's library.
    pub fn script(&self, name: &str) -> Command {
        let mut command = Command::new(&self.python);
        command.env("LLAMA_CPP_LIB_PATH", &self.built);
        command.arg(workspace::root().join("xtask/src/bench").join(name));
        command
    }

    /// `llama-batched-bench`.
    pub fn batched_bench(&self) -> Command {
        Command::new(self.built.join(BATCHED_BENCH))
    }

    /// `llama-server`.
    pub fn server(&self) -> Command {
        Command::new(self.built.join(SERVER))
    }
}

#[cfg(test)]
impl LlamaCpp {
    /// One that is nowhere.
    pub fn example() -> Self {
        Self { python: PathBuf::new(), built: PathBuf::new() }
    }
}

const BATCHED_BENCH: &str = "llama-batched-bench";
const SERVER: &str = "llama-server";

/// What is built is what a user of this machine builds, without what no benchmark needs.
const OPTIONS: [&str; 10] = [
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    // gcc 12 takes what `ldtilecfg` reads for dead: with AMX the first product ends in a fault.
    "-DCMAKE_CXX_FLAGS=-fno-tree-dse -fno-dse",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_SERVER=ON",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_ALL_WARNINGS=OFF",
];

/// llama.cpp in `folder`; compiles it the first time.
///
/// # Errors
///
/// As [`python::ensure`], or there is no C++ compiler.
pub fn ensure(folder: &Path, network: &flags::Network) -> Result<LlamaCpp> {
    let python = python::ensure(folder, network.offline)?;
    let sources = sources(folder, &python)?;
    let build = sources.join("build");
    let built = build.join("bin");
    if ![BATCHED_BENCH, SERVER].iter().all(|it| built.join(it).exists()) {
        eprintln!("==> compiling llama.cpp (once; about ten minutes on two cores)");
        let tools = iree::tools::build_tools(&fetch_iree::base_request(PathBuf::new(), network))?;
        let mut configure = Command::new(&tools.cmake);
        configure.arg("-S").arg(sources.join("vendor/llama.cpp")).arg("-B").arg(&build);
        if let Some(ninja) = &tools.ninja {
            configure.arg("-GNinja").arg(format!("-DCMAKE_MAKE_PROGRAM={}", ninja.display()));
        }
        workspace::run(configure.args(OPTIONS)).context("a C++ compiler is needed")?;
        let mut compile = Command::new(&tools.cmake);
        compile.arg("--build").arg(&build).args(["--parallel", "--target", BATCHED_BENCH, SERVER]);
        workspace::run(&mut compile)?;
    }
    Ok(LlamaCpp { python, built })
}

/// The unpacked archive.
fn sources(folder: &Path, python: &Path) -> Result<PathBuf> {
    let name = python::archive();
    let sources = folder.join(&name);
    if !sources.exists() {
        let archive = folder.join(format!("{name}.tar.gz"));
        // Half an archive must not look like all of it.
        let part = folder.join(format!("{name}.part"));
        let mut unpack = Command::new(python);
        unpack.args(["-m", "tarfile", "--extract"]).arg(archive).arg(&part);
        workspace::run(&mut unpack)?;
        fs::rename(part.join(&name), &sources).with_context(|| sources.display().to_string())?;
        fs::remove_dir(&part).with_context(|| part.display().to_string())?;
    }
    Ok(sources)
}

//! llama.cpp for this machine: its library, which Python calls, `llama-batched-bench` and
//! `llama-server`, all out of one native build.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::{machine, python};
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
const OPTIONS: [&str; 9] = [
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_SERVER=ON",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_ALL_WARNINGS=OFF",
];

/// gcc 12 takes what `ldtilecfg` reads for dead: with AMX the first product ends in a fault.
const WITH_AMX: &str = "-DCMAKE_CXX_FLAGS=-fno-tree-dse -fno-dse";

/// How it is built for a CPU with these flags.
fn options(cpu: &str) -> Vec<&'static str> {
    let amx = has_amx(cpu).then_some(WITH_AMX);
    OPTIONS.into_iter().chain(amx).collect()
}

fn has_amx(cpu: &str) -> bool {
    cpu.split_whitespace().any(|it| it == "amx_tile")
}

/// For the reader of a table: "llama-cpp-python 0.3.36, compiled here with native flags".
pub fn described() -> String {
    let name = python::LLAMA.replace("==", " ");
    let amx = if has_amx(&machine::flags()) {
        " but no elimination of dead stores, which gcc 12 gets wrong with AMX"
    } else {
        ""
    };
    format!("{name}, compiled here with native flags{amx}")
}

/// llama.cpp in `folder`; compiles it the first time, and when its options or the CPU are others.
///
/// # Errors
///
/// As [`python::ensure`], or there is no C++ compiler.
pub fn ensure(folder: &Path, network: &flags::Network) -> Result<LlamaCpp> {
    let python = python::ensure(folder, network.offline)?;
    let sources = sources(folder, &python)?;
    let build = sources.join("build");
    let built = build.join("bin");
    let cpu = machine::flags();
    let options = options(&cpu);
    let (stamp, wanted) = (build.join("built-with"), format!("{}\n{cpu}\n", options.join("\n")));
    if !is_built(&built, &stamp, &wanted) {
        eprintln!("==> compiling llama.cpp (once; about ten minutes on two cores)");
        // Native code of another CPU is not seen to be old.
        if build.exists() {
            fs::remove_dir_all(&build).with_context(|| build.display().to_string())?;
        }
        let tools = iree::tools::build_tools(&fetch_iree::base_request(PathBuf::new(), network))?;
        let mut configure = Command::new(&tools.cmake);
        configure.arg("-S").arg(sources.join("vendor/llama.cpp")).arg("-B").arg(&build);
        if let Some(ninja) = &tools.ninja {
            configure.arg("-GNinja").arg(format!("-DCMAKE_MAKE_PROGRAM={}", ninja.display()));
        }
        workspace::run(configure.args(options)).context("a C++ compiler is needed")?;
        let mut compile = Command::new(&tools.cmake);
        compile.arg("--build").arg(&build).args(["--parallel", "--target", BATCHED_BENCH, SERVER]);
        workspace::run(&mut compile)?;
        fs::write(&stamp, wanted).with_context(|| stamp.display().to_string())?;
    }
    Ok(LlamaCpp { python, built })
}

/// Whether all programs are in `built`, and `stamp` says that they were built as `wanted`.
fn is_built(built: &Path, stamp: &Path, wanted: &str) -> bool {
    [BATCHED_BENCH, SERVER].iter().all(|it| built.join(it).exists())
        && fs::read_to_string(stamp).is_ok_and(|it| it == wanted)
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

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn only_with_amx_is_it_built_in_another_way() {
        assert_eq!(options("fpu avx512f amx_tile_of_another_name"), OPTIONS);
        assert_eq!(options("fpu amx_tile amx_int8").last(), Some(&WITH_AMX));
    }

    #[test]
    fn what_was_built_otherwise_is_built_again() {
        let folder = tempfile::tempdir().unwrap();
        let (built, stamp) = (folder.path(), folder.path().join("built-with"));
        for program in [BATCHED_BENCH, SERVER] {
            fs::write(built.join(program), "").unwrap();
        }
        assert!(!is_built(built, &stamp, "here"), "by an xtask that left no stamp");
        fs::write(&stamp, "here").unwrap();
        assert!(is_built(built, &stamp, "here"));
        assert!(!is_built(built, &stamp, "elsewhere"));
        fs::remove_file(built.join(SERVER)).unwrap();
        assert!(!is_built(built, &stamp, "here"));
    }
}

//! Python with llama.cpp's bindings, and the archive that they and llama.cpp come from.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::workspace;

/// What is installed beside [`LLAMA`]; a change here installs anew.
const PACKAGES: [&str; 2] = ["gguf==0.19.0", "numpy>=2,<3"];

/// llama.cpp's C API as ctypes; its source archive holds all of llama.cpp.
pub const LLAMA: &str = "llama-cpp-python==0.3.36";

/// What the archive of [`LLAMA`] is called on PyPI, and the folder in it.
pub fn archive() -> String {
    LLAMA.replace('-', "_").replace("==", "-")
}

/// A Python with both, in `folder`/venv; the archive of [`LLAMA`] lies in `folder` then.
///
/// # Errors
///
/// There is no Python 3 with venv, or pip fails (no network).
pub fn ensure(folder: &Path, offline: bool) -> Result<PathBuf> {
    let venv = folder.join("venv");
    let python = venv.join("bin").join("python");
    let stamp = venv.join("installed");
    let wanted = [&[LLAMA], &PACKAGES[..]].concat().join("\n");
    let archive = format!("{}.tar.gz", archive());
    let there = python.exists() && folder.join(&archive).exists();
    if there && fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(python);
    }
    if offline {
        bail!("llama.cpp is not there yet: run once without --offline");
    }
    eprintln!("==> bringing Python's packages and llama.cpp's sources (once)");
    let mut make = Command::new("python3");
    make.args(["-m", "venv"]).arg(&venv);
    workspace::run(&mut make).context("a Python 3 with venv is needed (package python3-venv)")?;
    let pip = |arguments: &[&str]| {
        let mut pip = Command::new(&python);
        pip.args(["-m", "pip"]).args(arguments).arg("--disable-pip-version-check");
        // Who installs for themselves by default does not mean this folder.
        pip.env("PIP_USER", "0");
        // Bindings alone: their library is built beside `llama-batched-bench`, of which it is part.
        pip.env("CMAKE_ARGS", "-DLLAMA_BUILD=OFF").current_dir(folder);
        workspace::run(&mut pip).context("installing Python's packages")
    };
    pip(&["download", "--no-deps", "--no-binary", "llama-cpp-python", LLAMA])?;
    // With a folder before it, so that it is no package's name.
    pip(&[&["install", &format!("./{archive}")], &PACKAGES[..]].concat())?;
    fs::write(&stamp, wanted).with_context(|| stamp.display().to_string())?;
    Ok(python)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_archive_is_called_as_on_pypi() {
        let (name, version) = super::LLAMA.split_once("==").unwrap();
        assert_eq!(name, "llama-cpp-python");
        assert_eq!(super::archive(), format!("llama_cpp_python-{version}"));
    }
}

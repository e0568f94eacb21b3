//! llama.cpp for this machine: `llama-cpp-python`, compiled from its source archive on PyPI.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::workspace;

/// What is installed; a change here installs anew.
const PACKAGES: [&str; 3] = [LLAMA, "gguf==0.19.0", "numpy>=2,<3"];

/// llama.cpp with its C API as ctypes.
pub const LLAMA: &str = "llama-cpp-python==0.3.36";

/// A Python with [`PACKAGES`], in `folder`/venv; compiles llama.cpp the first time.
///
/// # Errors
///
/// There is no Python 3 with venv, or pip fails (no network, no C++ compiler).
pub fn ensure(folder: &Path, offline: bool) -> Result<PathBuf> {
    let venv = folder.join("venv");
    let python = venv.join("bin").join("python");
    let stamp = venv.join("installed");
    let wanted = PACKAGES.join("\n");
    if python.exists() && fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(python);
    }
    if offline {
        bail!("llama.cpp is not there yet: run once without --offline");
    }
    eprintln!("==> compiling llama.cpp (once; about ten minutes on two cores)");
    let mut make = Command::new("python3");
    make.args(["-m", "venv"]).arg(&venv);
    workspace::run(&mut make).context("a Python 3 with venv is needed (package python3-venv)")?;
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "--disable-pip-version-check"]);
    // A wheel from elsewhere would be for any CPU; native is what a user of llama.cpp builds.
    pip.args(["--no-binary", "llama-cpp-python"]).args(PACKAGES);
    // Without its library for images, which would take as long to compile as all the rest.
    pip.env("CMAKE_ARGS", "-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF");
    workspace::run(&mut pip).context("installing llama.cpp (a C++ compiler is needed)")?;
    fs::write(&stamp, wanted).with_context(|| stamp.display().to_string())?;
    Ok(python)
}

/// The script `name` beside this file.
pub fn script(name: &str) -> PathBuf {
    workspace::root().join("xtask/src/bench").join(name)
}

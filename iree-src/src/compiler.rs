//! The compiler out of its Python wheel, for programs that compile while they run.

use std::fs;
use std::path::{Path, PathBuf};

use crate::wheel::{self, Wheel};
use crate::{Error, Fetched, Result, process};

/// The folder of the wheel that has the native programs.
const PROGRAMS: &str = "iree/compiler/_mlir_libs";

/// A compiler in an IREE folder; paths are relative to it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Installed {
    /// `iree-compile`.
    pub program: Option<PathBuf>,
    /// The compiler as a shared library.
    pub library: Option<PathBuf>,
    /// What was downloaded.
    pub fetched: Vec<Fetched>,
}

/// The name of the compiler's program, linker or library, if that is what lies at `path` in the wheel.
pub fn part(path: &str) -> Option<&str> {
    let name = path.strip_prefix(PROGRAMS)?.strip_prefix('/')?;
    is_part(name).then_some(name)
}

fn is_part(name: &str) -> bool {
    matches!(name, "iree-compile" | "iree-lld") || name.starts_with("libIREECompiler.")
}

/// Lets pip bring the pinned compiler for `target` into `bin/` of the IREE folder `to`. Uses the
/// network; `scratch` is a folder for what is only needed meanwhile.
///
/// # Errors
///
/// [`Error::Platform`] when there is none for `target`, [`Error::Tool`] without Python,
/// [`Error::Command`] when pip fails.
pub fn install(target: &str, to: &Path, scratch: &Path) -> Result<Installed> {
    let wheel = Wheel::find("iree-base-compiler", target, "compile on another machine")?;
    let unpacked = scratch.join("compiler");
    let requirement = scratch.join("requirement.txt");
    fs::write(&requirement, wheel.requirement()).map_err(Error::io("write", &requirement))?;
    let mut pip = wheel::pip("python3");
    pip.args(["install", "--no-compile"]).args(wheel.pip_arguments());
    pip.arg("--target").arg(&unpacked).arg("--requirement").arg(&requirement);
    let log = scratch.join("pip.log");
    process::logged("pip install of the IREE compiler", &mut pip, &log, |_| {})?;
    let bin = to.join("bin");
    fs::create_dir_all(&bin).map_err(Error::io("create", &bin))?;
    let mut installed = Installed { fetched: vec![wheel.fetched()], ..Installed::default() };
    let programs = unpacked.join(PROGRAMS);
    for entry in fs::read_dir(&programs).map_err(Error::io("read", &programs))? {
        let path = entry.map_err(Error::io("read", &programs))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !is_part(&name) {
            continue;
        }
        let place = match name.as_str() {
            "iree-compile" => Some(&mut installed.program),
            "iree-lld" => None,
            _ => Some(&mut installed.library),
        };
        fs::rename(&path, bin.join(&name)).map_err(Error::io("move", &path))?;
        if let Some(place) = place {
            *place = Some(Path::new("bin").join(name));
        }
    }
    if installed.program.is_none() {
        return Err(Error::Request(format!("{} has no iree-compile in it", wheel.file)));
    }
    Ok(installed)
}

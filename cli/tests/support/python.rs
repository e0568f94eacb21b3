//! Python programs, with packages of registries.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What `command` says on both of its outputs.
///
/// # Errors
///
/// It cannot be run, or fails; with what it says.
pub fn output(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("cannot run {name}: {error}"))?;
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    if output.status.success() { Ok(text) } else { Err(format!("{name}: {}", text.trim())) }
}

/// A Python that has `modules`: `PYTHON`, else an environment `name` with `packages`, which is made once for all
/// tests of a build.
///
/// # Errors
///
/// Why there is none.
pub fn with(name: &str, packages: &[&str], modules: &[&str]) -> Result<PathBuf, String> {
    let imports = |python: &Path| {
        let line = format!("import {}", modules.join(", "));
        output(Command::new(python).args(["-c", &line])).map(drop)
    };
    if let Some(python) = std::env::var_os("PYTHON") {
        let python = PathBuf::from(python);
        return imports(&python).map(|()| python);
    }
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let python = folder.join("bin/python");
    // Written when all of it is there.
    let (stamp, wanted) = (folder.join("packages"), packages.join("\n"));
    if std::fs::read_to_string(&stamp).ok().as_deref() != Some(&wanted) {
        if std::env::var("CARGO_NET_OFFLINE").is_ok_and(|it| it == "true") {
            return Err("CARGO_NET_OFFLINE is set, and they are not there yet".into());
        }
        output(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder))?;
        let mut pip = Command::new(&python);
        pip.args(["-m", "pip", "install", "--quiet"]).args(packages).env("PIP_USER", "0");
        output(&mut pip)?;
        std::fs::write(&stamp, &wanted).map_err(|error| format!("{}: {error}", stamp.display()))?;
    }
    imports(&python).map(|()| python)
}

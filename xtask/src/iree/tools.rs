//! The programs that a build needs: found on the machine, else unpacked from pinned wheels.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use iree_src::cmake::{BuildTools, CMAKE, NINJA, check_compilers, find, version_in};
use iree_src::host_target;
use iree_src::process;
use iree_src::wheel::Wheel;

use super::request::{Machine, Request};
use super::{Error, Result, wheel};

const PYTHON: (u32, u32) = (3, 8);
const PIP: (u32, u32) = (20, 0);

/// Finds the build tools; fetches those that are missing or too old.
pub fn build_tools(request: &Request) -> Result<BuildTools> {
    check_compilers(&request.machine.path, request.machine.cc.as_deref())?;
    let cmake = tool(request, "cmake", CMAKE)?;
    Ok(BuildTools { cmake, ninja: Some(tool(request, "ninja", NINJA)?) })
}

fn tool(request: &Request, name: &str, at_least: (u32, u32)) -> Result<PathBuf> {
    if let Some(path) = find(&request.machine.path, name) {
        let version = process::output(name, Command::new(&path).arg("--version"));
        if version.is_ok_and(|text| version_in(&text).is_some_and(|v| v >= at_least)) {
            return Ok(path);
        }
    }
    let (major, minor) = at_least;
    let wheel = Wheel::find(name, &host_target(), &format!("install {name} {major}.{minor}"))?;
    let folder = unpacked(request, &wheel, |file| {
        if let Some(rest) = file.strip_prefix("cmake/data/") {
            let wanted = rest == "bin/cmake" || rest.starts_with("share/cmake");
            return wanted.then(|| rest.into());
        }
        file.ends_with(".data/scripts/ninja").then(|| "bin/ninja".into())
    })?;
    Ok(folder.join("bin").join(name))
}

/// A shared `libclang`, for bindgen: the folder that holds it.
///
/// # Errors
///
/// As [`wheel::obtain`].
pub fn libclang(request: &Request) -> Result<PathBuf> {
    let fix = "set LIBCLANG_PATH to the folder of an installed libclang";
    let wheel = Wheel::find("libclang", &request.target, fix)?;
    unpacked(request, &wheel, |file| {
        let name = file.rsplit('/').next()?;
        matches!(name, "libclang.so" | "libclang.dylib").then(|| name.into())
    })
}

/// Zig, whose C compiler knows every glibc.
///
/// # Errors
///
/// As [`wheel::obtain`].
#[cfg(feature = "release")]
pub fn zig(request: &Request) -> Result<PathBuf> {
    let wheel = Wheel::find("ziglang", &request.target, "make packages on another machine")?;
    let inside = |file: &str| file.strip_prefix("ziglang/").map(PathBuf::from);
    Ok(unpacked(request, &wheel, inside)?.join("zig"))
}

/// `cargo zigbuild`, which builds with [`zig`].
///
/// # Errors
///
/// As [`wheel::obtain`].
#[cfg(feature = "release")]
pub fn cargo_zigbuild(request: &Request) -> Result<PathBuf> {
    let wheel = Wheel::find("cargo-zigbuild", &request.target, "make packages on another machine")?;
    let name = "cargo-zigbuild";
    let inside = |file: &str| file.ends_with(&format!("/{name}")).then(|| name.into());
    Ok(unpacked(request, &wheel, inside)?.join(name))
}

/// The folder in the cache with the files of `wheel` that `place` chooses.
fn unpacked(
    request: &Request,
    wheel: &Wheel,
    choose: impl Fn(&str) -> Option<PathBuf>,
) -> Result<PathBuf> {
    // The hash in the name makes another pin another folder.
    let name = format!("{}-{}-{}", wheel.name, wheel.version, &wheel.sha256[..12]);
    let folder = request.machine.cache.join("tools").join(name);
    if folder.exists() {
        return Ok(folder);
    }
    let file = wheel::obtain(wheel, request)?;
    let parent = request.machine.cache.join("tools");
    fs::create_dir_all(&parent).map_err(Error::io("create", &parent))?;
    let staged = tempfile::Builder::new().prefix(".new-").tempdir_in(&parent);
    let staged = staged.map_err(Error::io("create a folder in", &parent))?;
    wheel::unpack(&file, staged.path(), request, choose)?;
    match fs::rename(staged.path(), &folder) {
        // Another process was faster, with the same bytes.
        Err(_) if folder.exists() => {}
        Err(e) => return Err(Error::io("put in place", &folder)(e)),
        Ok(()) => {
            // Renamed away: there is nothing left to delete.
            let _ = staged.keep();
        }
    }
    Ok(folder)
}

/// Fails with what to install when Python or pip are missing or too old.
pub fn check_pip(machine: &Machine) -> Result<()> {
    let python = machine.python.display().to_string();
    let fix = format!("install Python {}.{} or newer", PYTHON.0, PYTHON.1);
    let broken = |why: String| tool_error(&python, why, &fix);
    let text = process::output(&python, Command::new(&machine.python).arg("--version"))
        .map_err(|e| broken(e.to_string()))?;
    if version_in(&text).is_none_or(|version| version < PYTHON) {
        return Err(broken(format!("too old: {}", text.trim())));
    }
    let pip_fix = format!(
        "run `{python} -m ensurepip --upgrade`, or install the package python3-pip, or \
         `{python} -m pip install --upgrade pip`"
    );
    let broken = |why: String| tool_error("pip", why, &pip_fix);
    let mut command = Command::new(&machine.python);
    let text = process::output("pip", command.args(["-m", "pip", "--version"]))
        .map_err(|_| broken(format!("{python} has no module pip")))?;
    match version_in(&text) {
        Some(version) if version >= PIP => Ok(()),
        _ => Err(broken(format!("too old: {}", text.trim()))),
    }
}

fn tool_error(tool: &str, why: String, fix: &str) -> Error {
    iree_src::Error::Tool { tool: tool.into(), why, fix: fix.into() }.into()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn machine(path: &Path) -> Machine {
        let mut machine = Machine::from_env();
        machine.path = vec![path.to_owned()];
        machine.cc = None;
        machine
    }

    #[cfg(unix)]
    #[test]
    fn old_and_missing_pips_say_what_to_do() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let mut machine = machine(dir.path());
        machine.python = dir.path().join("python3");
        let say = |script: &str| {
            fs::write(&machine.python, format!("#!/bin/sh\n{script}\n")).unwrap();
            fs::set_permissions(&machine.python, fs::Permissions::from_mode(0o755)).unwrap();
            check_pip(&machine).map_err(|e| e.to_string())
        };
        assert!(say("echo Python 3.6.9").unwrap_err().contains("too old"));
        let no_pip = r#"[ "$1" = -m ] && exit 1; echo Python 3.11.7"#;
        assert!(say(no_pip).unwrap_err().contains("ensurepip"));
        let old_pip = r#"[ "$1" = -m ] && echo pip 9.0.1 || echo Python 3.11.7"#;
        assert!(say(old_pip).unwrap_err().contains("too old: pip 9"));
        let good = r#"[ "$1" = -m ] && echo pip 24.0 || echo Python 3.11.7"#;
        say(good).unwrap();
    }
}

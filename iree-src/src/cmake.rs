//! The programs that build the runtime, as the machine has them.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Error, Result, process};

/// The oldest cmake that IREE takes.
pub const CMAKE: (u32, u32) = (3, 26);
/// The oldest ninja that is taken.
pub const NINJA: (u32, u32) = (1, 10);

/// What the runtime is built with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuildTools {
    /// CMake.
    pub cmake: PathBuf,
    /// Ninja; without it, cmake writes makefiles.
    pub ninja: Option<PathBuf>,
}

impl BuildTools {
    /// Those of the environment: `CMAKE`, else `PATH`.
    ///
    /// # Errors
    ///
    /// [`Error::Tool`] when cmake or a compiler of C or C++ is missing, or cmake is too old.
    pub fn from_env() -> Result<BuildTools> {
        let path: Vec<_> =
            env::var_os("PATH").map(|it| env::split_paths(&it).collect()).unwrap_or_default();
        let var = |name| env::var_os(name).filter(|it| !it.is_empty()).map(PathBuf::from);
        check_compilers(&path, var("CC").as_deref())?;
        let cmake = var("CMAKE").or_else(|| find(&path, "cmake"));
        let ninja = find(&path, "ninja").filter(|it| version(it).is_some_and(|it| it >= NINJA));
        Ok(BuildTools { cmake: check_cmake(cmake)?, ninja })
    }
}

fn check_cmake(cmake: Option<PathBuf>) -> Result<PathBuf> {
    let broken = |why: String| {
        let (major, minor) = CMAKE;
        let fix = format!(
            "IREE is built with cmake {major}.{minor} or newer: install it (Debian: apt install \
             cmake; anywhere: pip install cmake), or set CMAKE to the program"
        );
        Error::Tool { tool: "cmake".into(), why, fix }
    };
    let cmake = cmake.ok_or_else(|| broken("not on PATH".into()))?;
    match version(&cmake) {
        Some(found) if found >= CMAKE => Ok(cmake),
        Some((major, minor)) => {
            Err(broken(format!("{} is of version {major}.{minor}", cmake.display())))
        }
        None => Err(broken(format!("{} does not run", cmake.display()))),
    }
}

/// The version that `program --version` prints.
pub fn version(program: &Path) -> Option<(u32, u32)> {
    let text = process::output("--version", Command::new(program).arg("--version")).ok()?;
    version_in(&text)
}

/// The first `major.minor` in a program's version text.
pub fn version_in(text: &str) -> Option<(u32, u32)> {
    let word = text.split_whitespace().find(|w| w.starts_with(|c: char| c.is_ascii_digit()))?;
    let mut parts = word.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// The first executable `name` in the folders `path`.
pub fn find(path: &[PathBuf], name: &str) -> Option<PathBuf> {
    let name = format!("{name}{}", env::consts::EXE_SUFFIX);
    path.iter().map(|dir| dir.join(&name)).find(|path| is_program(path))
}

#[cfg(unix)]
fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(not(unix))]
fn is_program(path: &Path) -> bool {
    path.is_file()
}

/// Whether there are a C and a C++ compiler: `cc`, which the user chose, or those on `path`.
///
/// # Errors
///
/// [`Error::Tool`] when there are not.
pub fn check_compilers(path: &[PathBuf], cc: Option<&Path>) -> Result<()> {
    // CMake looks for these names too; CC and CXX are its own business.
    let any = |names: [&str; 3]| cc.is_some() || names.iter().any(|it| find(path, it).is_some());
    let (c, cxx) = (any(["cc", "gcc", "clang"]), any(["c++", "g++", "clang++"]));
    let missing = match (c, cxx) {
        (true, true) => return Ok(()),
        (false, _) => "C compiler",
        (true, false) => "C++ compiler",
    };
    Err(Error::Tool {
        tool: missing.to_owned(),
        why: "none is on PATH".into(),
        fix: "install one (Debian: apt install build-essential; Fedora: dnf install gcc-c++; \
              macOS: xcode-select --install), or set CC and CXX"
            .into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_versions() {
        assert_eq!(version_in("cmake version 3.31.6\n\nCMake suite"), Some((3, 31)));
        assert_eq!(version_in("1.11.1.git.kitware"), Some((1, 11)));
        assert_eq!(version_in("pip 23.2.1 from somewhere"), Some((23, 2)));
        assert_eq!(version_in("Python 3.11.7"), Some((3, 11)));
        assert_eq!(version_in("none"), None);
    }

    #[test]
    fn a_missing_compiler_says_what_to_install() {
        let dir = tempfile::tempdir().unwrap();
        let error = check_compilers(&[dir.path().to_owned()], None).unwrap_err().to_string();
        assert!(error.contains("C compiler") && error.contains("build-essential"), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn a_cmake_that_is_missing_old_or_broken_says_what_to_do() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let cmake = dir.path().join("cmake");
        let says = |script: &str| {
            std::fs::write(&cmake, format!("#!/bin/sh\n{script}\n")).unwrap();
            std::fs::set_permissions(&cmake, std::fs::Permissions::from_mode(0o755)).unwrap();
            check_cmake(Some(cmake.clone())).map_err(|e| e.to_string())
        };
        let missing = check_cmake(None).unwrap_err().to_string();
        assert!(missing.contains("not on PATH") && missing.contains("apt install"), "{missing}");
        let old = says("echo cmake version 3.25.1").unwrap_err();
        assert!(old.contains("3.25") && old.contains("3.26 or newer"), "{old}");
        let broken = says("exit 1").unwrap_err();
        assert!(broken.contains("does not run") && broken.contains("set CMAKE"), "{broken}");
        assert_eq!(says("echo cmake version 3.26.0").unwrap(), cmake);
    }
}

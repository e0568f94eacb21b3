//! The Python wheels that native programs are taken from, each pinned by its hash.

#[cfg(feature = "wheels")]
mod download;
#[cfg(feature = "wheels")]
mod unpack;

#[cfg(feature = "wheels")]
pub use unpack::unpack;

use std::ffi::OsStr;
use std::process::Command;

use crate::{Error, Fetched, Result, platform};

const PINS: &str = include_str!("../pins/wheels.tsv");

/// One row of the pin table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wheel {
    /// The project's name.
    pub name: &'static str,
    /// Its version.
    pub version: &'static str,
    /// The file's name.
    pub file: &'static str,
    /// The file's size in bytes.
    pub bytes: u64,
    /// The file's SHA-256, lower-case hex.
    pub sha256: &'static str,
    platform: &'static str,
    tag: &'static str,
}

impl Wheel {
    /// The pinned wheel of `name` for the target triple `target`.
    ///
    /// # Errors
    ///
    /// [`Error::Platform`] when none is pinned; `fix` is what the user can do then.
    pub fn find(name: &str, target: &str, fix: &str) -> Result<Wheel> {
        let platforms = platform::names(target);
        pins().find(|w| w.name == name && platforms.contains(&w.platform)).ok_or_else(|| {
            Error::Platform {
                name: name.to_owned(),
                target: target.to_owned(),
                fix: fix.to_owned(),
            }
        })
    }

    /// How a manifest records it.
    pub fn fetched(&self) -> Fetched {
        Fetched { name: self.file.to_owned(), sha256: self.sha256.to_owned() }
    }

    /// The line of a requirements file that stands for this file and no other.
    pub fn requirement(&self) -> String {
        format!("{}=={} --hash=sha256:{}\n", self.name, self.version, self.sha256)
    }

    /// What pip is told so that it takes this file: that for CPython 3.11, whatever the machine's
    /// Python is, because only native programs are used, and nothing else.
    pub fn pip_arguments(&self) -> Vec<&'static str> {
        vec![
            "--no-deps",
            "--only-binary=:all:",
            "--require-hashes",
            "--disable-pip-version-check",
            "--no-input",
            "--progress-bar=off",
            "--implementation=cp",
            "--python-version=3.11",
            "--abi=cp311",
            "--platform",
            self.tag,
        ]
    }
}

/// pip of the Python `python`. What people set so that nothing is installed where they do not want it
/// does not concern it: all that it brings goes into a folder of ours.
pub(crate) fn pip(python: impl AsRef<OsStr>) -> Command {
    let mut pip = Command::new(python);
    pip.args(["-m", "pip"]).env("PIP_USER", "0").env("PIP_REQUIRE_VIRTUALENV", "0");
    pip
}

fn pins() -> impl Iterator<Item = Wheel> {
    PINS.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
        let fields: Vec<&'static str> = line.split('\t').collect();
        let [name, version, platform, tag, file, bytes, sha256] = fields[..] else { return None };
        Some(Wheel { name, version, platform, tag, file, bytes: bytes.parse().ok()?, sha256 })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_pin_table_is_sound() {
        let rows: Vec<_> = pins().collect();
        assert_eq!(rows.len(), PINS.lines().filter(|l| !l.starts_with('#')).count());
        for row in rows {
            assert_eq!(row.sha256.len(), 64, "{row:?}");
            assert!(row.bytes > 0 && row.file.ends_with(".whl") && row.file.contains(row.tag));
            assert!(row.file.starts_with(&row.name.replace('-', "_")), "{row:?}");
        }
    }

    #[test]
    fn has_a_compiler_for_every_supported_platform() {
        for target in
            ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu", "aarch64-apple-darwin"]
        {
            for name in ["iree-base-compiler", "cmake", "ninja", "libclang"] {
                Wheel::find(name, target, "").unwrap();
            }
        }
        let error = Wheel::find("cmake", "riscv64gc-unknown-linux-gnu", "install it").unwrap_err();
        assert!(error.to_string().contains("install it"), "{error}");
    }

    #[test]
    fn what_pip_is_told_for_installing_by_hand_is_no_hindrance() {
        if !Command::new("python3")
            .args(["-m", "pip", "--version"])
            .output()
            .is_ok_and(|it| it.status.success())
        {
            eprintln!("SKIPPED: there is no python3 with pip");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let settings = dir.path().join("pip.conf");
        let text = "[global]\nrequire-virtualenv = true\n[install]\nuser = true\n";
        std::fs::write(&settings, text).unwrap();
        // Nothing to install, which is found out after the settings were looked at.
        let requirement = dir.path().join("requirement.txt");
        std::fs::write(&requirement, "").unwrap();
        let mut install = pip("python3");
        install.args(["install", "--no-index", "--disable-pip-version-check", "--target"]);
        install.arg(dir.path().join("to")).arg("--requirement").arg(&requirement);
        let done = install.env("PIP_CONFIG_FILE", settings).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }
}

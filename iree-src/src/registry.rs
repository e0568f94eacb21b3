//! The origin `registry`: IREE sources inside a Cargo package, fetched and verified by cargo.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::request::Request;
use crate::{Error, Fetched, Result, mend, process};

const MANIFEST: &str = include_str!("../pins/registry.toml");
const LOCK: &str = include_str!("../pins/registry.lock");
const PACKAGE: &str = "eerie-sys";

/// An IREE source tree.
pub(crate) struct SourceTree {
    /// The folder with `runtime/`.
    pub(crate) dir: PathBuf,
    /// What it is, for the manifest.
    pub(crate) detail: String,
    /// What was downloaded to get it.
    pub(crate) fetched: Vec<Fetched>,
    /// Whether the faults of its version are mended.
    pub(crate) mended: bool,
}

/// Lets cargo fetch the pinned package; `scratch` is a folder for the pinned manifest.
pub(crate) fn fetch(request: &Request, scratch: &Path) -> Result<SourceTree> {
    let step = request.progress.spinner("fetch the IREE sources");
    fs::create_dir_all(scratch).map_err(Error::io("create", scratch))?;
    for (name, text) in [("Cargo.toml", MANIFEST), ("Cargo.lock", LOCK), ("lib.rs", "")] {
        let path = scratch.join(name);
        fs::write(&path, text).map_err(Error::io("write", &path))?;
    }
    let cargo = |subcommand: &str| {
        let mut command = Command::new(&request.machine.cargo);
        command.arg(subcommand).arg("--locked").current_dir(scratch);
        if request.offline {
            command.arg("--offline");
        }
        command
    };
    process::output("cargo fetch of the IREE sources", &mut cargo("fetch")).map_err(|error| {
        match error {
            Error::Command { tail, .. } if request.offline => {
                Error::Offline { what: format!("the package {PACKAGE} ({})", tail.trim()) }
            }
            other => other,
        }
    })?;
    let text =
        process::output("cargo metadata", cargo("metadata").args(["--format-version", "1"]))?;
    let found = parse_metadata(&text).ok_or_else(|| {
        Error::Request(format!("cargo metadata does not say where {PACKAGE} is: cargo is broken"))
    })?;
    let (version, dir) = found;
    step.done();
    let sha256 = checksum().unwrap_or_default().to_owned();
    let name = format!("{PACKAGE}-{version}.crate");
    Ok(SourceTree {
        dir: mend::copy(&dir.join("iree"), scratch.join("iree"), &request.version)?,
        detail: format!("{PACKAGE} {version}"),
        fetched: vec![Fetched { name, sha256 }],
        mended: true,
    })
}

/// The version and folder of the package in `cargo metadata`'s output.
fn parse_metadata(text: &str) -> Option<(String, PathBuf)> {
    let metadata: serde_json::Value = serde_json::from_str(text).ok()?;
    let package = metadata["packages"].as_array()?.iter().find(|p| p["name"] == PACKAGE)?;
    let dir = Path::new(package["manifest_path"].as_str()?).parent()?;
    Some((package["version"].as_str()?.to_owned(), dir.to_owned()))
}

/// The package's checksum in the pinned lock file, which cargo has verified.
fn checksum() -> Option<&'static str> {
    let (_, package) = LOCK.split_once(&format!("name = \"{PACKAGE}\""))?;
    package.split_once("checksum = \"")?.1.split('"').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lock_pins_the_package() {
        let sum = checksum().unwrap();
        assert!(sum.len() == 64 && sum.bytes().all(|b| b.is_ascii_hexdigit()), "{sum}");
    }

    #[test]
    fn finds_the_package_folder() {
        let text = r#"{"packages":[{"name":"x","version":"1","manifest_path":"/x/Cargo.toml"},
            {"name":"eerie-sys","version":"0.5.0","manifest_path":"/r/eerie/Cargo.toml"}]}"#;
        assert_eq!(parse_metadata(text).unwrap(), ("0.5.0".into(), "/r/eerie".into()));
        assert!(parse_metadata("{}").is_none());
    }
}

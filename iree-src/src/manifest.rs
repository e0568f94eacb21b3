//! `iree.json`: what an IREE folder holds and how to use it.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// The manifest's file name inside an IREE folder.
pub const MANIFEST: &str = "iree.json";

const SCHEMA: u32 = 1;

/// The parsed `iree.json`. Paths are relative to the folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of this format; 1.
    pub schema: u32,
    /// IREE's version, for example `3.13.0`.
    pub iree: String,
    /// The target triple of the libraries.
    pub target: String,
    /// Where the folder came from.
    pub origin: Origin,
    /// What the runtime library is instrumented for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sanitizer: Option<Sanitizer>,
    /// Faults of this version of IREE that were mended before the runtime was built.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mended: Vec<String>,
    /// HAL drivers inside the runtime library, for example `local-task`.
    pub drivers: Vec<String>,
    /// Whether the runtime can write what its VM executes.
    #[serde(default)]
    pub vm_trace: bool,
    /// Folders to put on the include path.
    pub include: Vec<PathBuf>,
    /// The folder with the static libraries.
    pub lib: PathBuf,
    /// What to link, in this order, each in the form that `cargo:rustc-link-lib=` takes.
    pub link: Vec<String>,
    /// `iree-compile`, when the folder has one.
    pub compiler: Option<PathBuf>,
    /// The compiler as a shared library, when the folder has one.
    pub compiler_library: Option<PathBuf>,
    /// What was downloaded to make the folder.
    #[serde(default)]
    pub fetched: Vec<Fetched>,
    /// Hashes of the libraries and programs in the folder, for `--check`.
    #[serde(default)]
    pub files: Vec<FileHash>,
}

/// Where an IREE folder came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The kind of origin.
    pub kind: OriginKind,
    /// The package, archive or checkout, in words.
    pub detail: String,
}

/// A sanitizer that C compilers and rustc have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sanitizer {
    /// AddressSanitizer: memory that is not one's own, and leaks.
    Address,
    /// ThreadSanitizer: data races.
    Thread,
}

impl Sanitizer {
    /// What `-fsanitize=` and `-Zsanitizer=` call it.
    pub fn as_str(self) -> &'static str {
        match self {
            Sanitizer::Address => "address",
            Sanitizer::Thread => "thread",
        }
    }
}

/// The kinds of [`Origin`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OriginKind {
    /// Built from the sources inside a Cargo package.
    Registry,
    /// Upstream's prebuilt archive.
    Dist,
    /// Built from a checkout.
    Source,
}

impl std::fmt::Display for OriginKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            OriginKind::Registry => "registry",
            OriginKind::Dist => "dist",
            OriginKind::Source => "source",
        })
    }
}

/// One artifact that was downloaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fetched {
    /// Its file name.
    pub name: String,
    /// Its SHA-256, lower-case hex.
    pub sha256: String,
}

/// The hash of one file of the folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileHash {
    /// The file, relative to the folder.
    pub path: PathBuf,
    /// Its SHA-256, lower-case hex.
    pub sha256: String,
}

impl Manifest {
    /// Reads the manifest of `folder`.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] when the file cannot be read, [`Error::Manifest`] when it is malformed, of
    /// another schema, or names a path outside of its folder.
    pub fn load(folder: &Path) -> Result<Manifest> {
        let path = folder.join(MANIFEST);
        let text = fs::read_to_string(&path).map_err(Error::io("read", &path))?;
        Manifest::parse(&text).map_err(|why| Error::Manifest { path, why })
    }

    fn parse(text: &str) -> Result<Manifest, String> {
        let manifest: Manifest = serde_json::from_str(text).map_err(|e| e.to_string())?;
        if manifest.schema != SCHEMA {
            return Err(format!("schema {} instead of {SCHEMA}", manifest.schema));
        }
        for path in manifest.paths() {
            let outside = path.components().any(|c| !matches!(c, std::path::Component::Normal(_)));
            if outside && path != Path::new(".") {
                return Err(format!("the path {} leaves the folder", path.display()));
            }
        }
        Ok(manifest)
    }

    /// Writes the manifest into `folder`.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] when the file cannot be written.
    pub fn save(&self, folder: &Path) -> Result<()> {
        let path = folder.join(MANIFEST);
        let mut text = serde_json::to_string_pretty(self)
            .map_err(|e| Error::Manifest { path: path.clone(), why: e.to_string() })?;
        text.push('\n');
        fs::write(&path, text).map_err(Error::io("write", &path))
    }

    /// Every path the manifest names.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        let single = [&self.lib].into_iter();
        let compiler = self.compiler.iter().chain(&self.compiler_library);
        let files = self.files.iter().map(|f| &f.path);
        self.include.iter().chain(single).chain(compiler).chain(files).map(PathBuf::as_path)
    }

    /// The static archives that [`link`](Manifest::link) names, as paths inside `lib`.
    pub fn archives(&self) -> impl Iterator<Item = PathBuf> {
        self.link.iter().filter_map(|link| {
            let (kind, name) = link.split_once('=')?;
            (kind == "static" || kind.starts_with("static:"))
                .then(|| self.lib.join(format!("lib{name}.a")))
        })
    }

    /// The paths that must exist for the folder to be usable but do not, relative to it.
    pub fn missing(&self, folder: &Path) -> Vec<PathBuf> {
        let named = self.paths().map(Path::to_owned);
        let mut missing: Vec<_> =
            named.chain(self.archives()).filter(|path| !folder.join(path).exists()).collect();
        missing.sort();
        missing.dedup();
        missing
    }

    /// Whether the runtime library holds `driver`, for example `cuda`.
    pub fn has_driver(&self, driver: &str) -> bool {
        self.drivers.iter().any(|d| d == driver)
    }
}

/// The target triple of the machine this was compiled for.
pub fn host_target() -> String {
    let (arch, os) = (std::env::consts::ARCH, std::env::consts::OS);
    match os {
        "macos" => format!("{arch}-apple-darwin"),
        "linux" if cfg!(target_env = "musl") => format!("{arch}-unknown-linux-musl"),
        _ => format!("{arch}-unknown-{os}-gnu"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = r#"{
        "schema": 1, "iree": "3.13.0", "target": "x86_64-unknown-linux-gnu",
        "origin": { "kind": "registry", "detail": "eerie-sys 0.5.0" },
        "drivers": ["local-sync", "local-task"], "include": ["include"], "lib": "lib",
        "link": ["static=iree_runtime_unified", "static:+whole-archive=extra", "dylib=m"],
        "compiler": "bin/iree-compile", "compiler_library": null, "fetched": []
    }"#;

    #[test]
    fn reads_the_documented_form() {
        let manifest = Manifest::parse(EXAMPLE).unwrap();
        assert_eq!(manifest.origin.kind, OriginKind::Registry);
        assert_eq!(manifest.compiler.as_deref(), Some(Path::new("bin/iree-compile")));
        assert_eq!(manifest.compiler_library, None);
        let archives: Vec<_> = manifest.archives().collect();
        let expected = [Path::new("lib/libiree_runtime_unified.a"), Path::new("lib/libextra.a")];
        assert_eq!(archives, expected);
        assert!(manifest.has_driver("local-task") && !manifest.has_driver("cuda"));
    }

    #[test]
    fn survives_a_round_trip() {
        let folder = tempfile::tempdir().unwrap();
        let mut manifest = Manifest::parse(EXAMPLE).unwrap();
        manifest.files = vec![FileHash { path: "lib/x.a".into(), sha256: "00".into() }];
        manifest.save(folder.path()).unwrap();
        assert_eq!(Manifest::load(folder.path()).unwrap(), manifest);
    }

    #[test]
    fn refuses_another_schema_and_paths_that_leave_the_folder() {
        let newer = EXAMPLE.replace("\"schema\": 1", "\"schema\": 2");
        assert!(Manifest::parse(&newer).unwrap_err().contains("schema 2"));
        for bad in ["../lib", "/lib"] {
            let text = EXAMPLE.replace("\"lib\": \"lib\"", &format!("\"lib\": \"{bad}\""));
            assert!(Manifest::parse(&text).unwrap_err().contains("leaves the folder"));
        }
    }

    #[test]
    fn names_what_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        let manifest = Manifest::parse(EXAMPLE).unwrap();
        std::fs::create_dir_all(folder.path().join("include")).unwrap();
        let missing = manifest.missing(folder.path());
        assert!(missing.contains(&"lib/libiree_runtime_unified.a".into()));
        assert!(!missing.contains(&"include".into()));
    }
}

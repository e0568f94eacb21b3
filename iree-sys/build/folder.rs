//! Which IREE folder to build against, and what its manifest says.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// Environment variables that name a folder, strongest first.
pub const VARIABLES: [&str; 2] = ["IREE_CUDA_HOME", "IREE_DIST"];

/// The part of `iree.json` that a build needs.
#[derive(Deserialize)]
pub struct Manifest {
    pub iree: String,
    pub target: String,
    pub drivers: Vec<String>,
    pub include: Vec<String>,
    pub lib: String,
    /// `KIND=NAME` in link order, as `rustc-link-lib` takes them.
    pub link: Vec<String>,
}

pub struct Folder {
    pub root: PathBuf,
    pub manifest: Manifest,
}

/// The folder of the first variable that is set, else `iree/` beside the build's profiles.
pub fn find() -> Result<Folder, String> {
    for name in VARIABLES {
        if let Some(value) = env::var_os(name).filter(|value| !value.is_empty()) {
            return open(Path::new(&value)).map_err(|e| format!("{name}: {e}"));
        }
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    for dir in out.ancestors() {
        let root = dir.join("iree");
        if root.join("iree.json").is_file() {
            println!("cargo:rerun-if-changed={}", root.join("iree.json").display());
            return open(&root);
        }
    }
    // Build again as soon as the folder is there: `target/` is three levels above `build/*/out`.
    if let Some(target) = out.ancestors().nth(4) {
        println!("cargo:rerun-if-changed={}", target.join("iree/iree.json").display());
    }
    Err("no IREE folder in the target directory".into())
}

fn open(root: &Path) -> Result<Folder, String> {
    let path = root.join("iree.json");
    println!("cargo:rerun-if-changed={}", path.display());
    let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let manifest: Manifest =
        serde_json::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))?;
    let target = env::var("TARGET").expect("cargo sets TARGET");
    if manifest.target != target {
        return Err(format!("{} is for {}, not {target}", path.display(), manifest.target));
    }
    Ok(Folder { root: root.to_path_buf(), manifest })
}

//! Where the compiler is.

use std::env;
use std::path::{Path, PathBuf};

use crate::base::error::{Code, Error, Result};

/// The IREE folder of the build, if there was one.
const FOLDER: Option<&str> = option_env!("IREE_RT_FOLDER");

pub(super) fn program() -> Result<PathBuf> {
    let name = format!("iree-compile{}", env::consts::EXE_SUFFIX);
    let mut places = places();
    if let Some(path) = env::var_os("PATH") {
        places.extend(env::split_paths(&path));
    }
    find(&places, &name)
}

pub(super) fn library() -> Result<PathBuf> {
    find(&places(), &format!("{}IREECompiler{}", env::consts::DLL_PREFIX, env::consts::DLL_SUFFIX))
}

fn places() -> Vec<PathBuf> {
    let mut places: Vec<PathBuf> =
        FOLDER.map(|root| Path::new(root).join("bin")).into_iter().collect();
    if let Some(beside) = env::current_exe().ok().as_deref().and_then(Path::parent) {
        places.push(beside.to_path_buf());
    }
    places
}

fn find(places: &[PathBuf], name: &str) -> Result<PathBuf> {
    let found = places.iter().map(|place| place.join(name)).find(|path| path.is_file());
    found.ok_or_else(|| {
        let folder = FOLDER.map_or("no IREE folder at build time".into(), |f| format!("{f}/bin"));
        Error::new(
            Code::NotFound,
            format!(
                "no {name}: looked in {folder}, beside the program and on the PATH; `cargo xtask \
                 fetch-iree` brings one"
            ),
        )
    })
}

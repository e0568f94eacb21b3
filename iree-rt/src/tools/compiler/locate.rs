//! Where the compiler is.

use std::env;
use std::path::{Path, PathBuf};

use iree_sys::IREE_VERSION;

use crate::base::error::{Code, Error, Result};

/// The IREE folder of the build, where it is remembered: in debug builds, and with the feature
/// `remember-folder`.
const FOLDER: Option<&str> = option_env!("IREE_RT_FOLDER");

pub(super) fn program() -> Result<PathBuf> {
    let mut places = places();
    if let Some(path) = env::var_os("PATH") {
        places.extend(env::split_paths(&path));
    }
    find(&places, &format!("iree-compile{}", env::consts::EXE_SUFFIX))
}

pub(super) fn library() -> Result<PathBuf> {
    find(&places(), &format!("{}IREECompiler{}", env::consts::DLL_PREFIX, env::consts::DLL_SUFFIX))
}

fn places() -> Vec<PathBuf> {
    let mut places = Vec::new();
    // Release archives of IREE have the library in `lib`.
    for folder in FOLDER.map(PathBuf::from).into_iter().chain(named()) {
        places.extend(["bin", "lib"].map(|inside| folder.join(inside)));
    }
    if let Some(beside) = env::current_exe().ok().as_deref().and_then(Path::parent) {
        places.push(beside.to_path_buf());
    }
    places
}

/// The folder that the environment names, as it does for the build.
fn named() -> Option<PathBuf> {
    let folder = PathBuf::from(env::var_os("IREE_DIST")?);
    folder.is_absolute().then_some(folder)
}

fn find(places: &[PathBuf], name: &str) -> Result<PathBuf> {
    let found = places.iter().map(|place| place.join(name)).find(|path| path.is_file());
    found.ok_or_else(|| {
        let folder = FOLDER.map_or(String::new(), |it| format!("{it}, "));
        Error::new(
            Code::NotFound,
            format!(
                "no {name}: looked in {folder}the folder that IREE_DIST names, beside the program \
                 and on the PATH; `pip install iree-base-compiler=={}` brings one, as the feature \
                 `bundled-compiler` does, and `cargo xtask fetch-iree` in the workspace of iree-rt",
                IREE_VERSION
            ),
        )
    })
}

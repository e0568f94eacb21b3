//! Where the compiler is.

use std::env;
use std::path::{Path, PathBuf};

use iree_sys::IREE_VERSION;

use crate::base::error::{Code, Error, Result};

/// The IREE folder of the build, where it is remembered: in debug builds, and with the feature
/// `remember-folder`.
const FOLDER: Option<&str> = option_env!("IREE_RT_FOLDER");

/// The variables that name an IREE folder; the first wins, as in the build.
const VARIABLES: [&str; 2] = ["IREE_CUDA_HOME", "IREE_DIST"];

pub(super) fn program() -> Result<PathBuf> {
    let mut places = places();
    if let Some(path) = env::var_os("PATH") {
        places.extend(env::split_paths(&path));
    }
    find(&places, &format!("iree-compile{}", env::consts::EXE_SUFFIX), " and on the PATH")
}

pub(super) fn library() -> Result<PathBuf> {
    let name = format!("{}IREECompiler{}", env::consts::DLL_PREFIX, env::consts::DLL_SUFFIX);
    find(&places(), &name, "")
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

/// The folders that the environment names, as it does for the build. One without a compiler hides
/// none: the other is looked in, too.
fn named() -> impl Iterator<Item = PathBuf> {
    let folders = VARIABLES.into_iter().filter_map(env::var_os).map(PathBuf::from);
    folders.filter(|folder| folder.is_absolute())
}

/// `last` is where else was looked, for the message.
fn find(places: &[PathBuf], name: &str, last: &str) -> Result<PathBuf> {
    let found = places.iter().map(|place| place.join(name)).find(|path| path.is_file());
    found.ok_or_else(|| {
        let folder = FOLDER.map_or(String::new(), |it| format!("{it}, "));
        Error::new(
            Code::NotFound,
            format!(
                "no {name}: looked in {folder}the folders that {} name, beside the \
                 program{last}; `pip install iree-base-compiler=={}` brings one, as the feature \
                 `bundled-compiler` does, and `cargo xtask fetch-iree` in the workspace of iree-rt",
                VARIABLES.join(" and "),
                IREE_VERSION
            ),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_found_says_where_it_was_looked_for() {
        let said = find(&[], "x", "").unwrap_err().to_string();
        assert!(VARIABLES.iter().all(|name| said.contains(name)), "{said}");
        assert!(said.contains("beside the program;"), "{said}");
    }
}

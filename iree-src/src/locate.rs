//! Which IREE folder a build uses.

use std::path::{Path, PathBuf};

use crate::{Error, MANIFEST, Manifest, Result, prebuilt};

/// The environment variable that names a CUDA-enabled IREE folder.
pub const CUDA_HOME_VAR: &str = "IREE_CUDA_HOME";
/// The environment variable that names an IREE folder, fetched or unpacked by hand.
pub const DIST_VAR: &str = "IREE_DIST";

/// What the user's environment says about the IREE folder.
///
/// The environment is read by the caller: a build script or a command.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overrides {
    /// The value of [`CUDA_HOME_VAR`]; it wins.
    pub cuda_home: Option<PathBuf>,
    /// The value of [`DIST_VAR`].
    pub dist: Option<PathBuf>,
}

/// An IREE folder that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located {
    /// The folder; paths in the manifest are relative to it.
    pub folder: PathBuf,
    /// What it holds.
    pub manifest: Manifest,
    /// Why this folder and no other: an environment variable's name or `the target folder`.
    pub from: &'static str,
}

impl Overrides {
    fn first(&self) -> Option<(&Path, &'static str)> {
        // An empty variable is how shells unset one for a single command.
        let named = [(&self.cuda_home, CUDA_HOME_VAR), (&self.dist, DIST_VAR)];
        named.into_iter().find_map(|(path, name)| {
            let path = path.as_deref()?;
            (!path.as_os_str().is_empty()).then_some((path, name))
        })
    }

    fn locate(&self) -> Result<Option<Located>> {
        let Some((folder, from)) = self.first() else { return Ok(None) };
        let refused =
            |why| Error::NotAnIreeFolder { path: folder.to_owned(), from: from.to_owned(), why };
        // Build scripts run in the folder of their package, which is not where the user is.
        if folder.is_relative() {
            return Err(refused("it is a relative path, and has to be an absolute one".into()));
        }
        if folder.join(MANIFEST).is_file() {
            let manifest = Manifest::load(folder)?;
            return Ok(Some(Located { folder: folder.to_owned(), manifest, from }));
        }
        let manifest = prebuilt::describe(folder).map_err(refused)?;
        Ok(Some(Located { folder: folder.to_owned(), manifest, from }))
    }
}

/// Finds the folder for a build script: the overrides, else `iree/` in the nearest ancestor of
/// `out_dir` (cargo's `OUT_DIR`) that has one, which is the target folder. What is in `out_dir`
/// itself the feature `bundled` has made, and decides about.
///
/// `None` when there is nothing anywhere.
///
/// # Errors
///
/// When an override names no IREE folder, or a manifest is damaged.
pub fn locate_from(overrides: &Overrides, out_dir: &Path) -> Result<Option<Located>> {
    if let Some(found) = overrides.locate()? {
        return Ok(Some(found));
    }
    for ancestor in out_dir.ancestors().skip(1) {
        if let Some(found) = in_folder(ancestor)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Finds the folder for a program that knows cargo's target folder: the overrides, else
/// `<target>/iree`.
///
/// # Errors
///
/// As [`locate_from`].
pub fn locate_in_target(overrides: &Overrides, target: &Path) -> Result<Option<Located>> {
    match overrides.locate()? {
        Some(found) => Ok(Some(found)),
        None => in_folder(target),
    }
}

fn in_folder(parent: &Path) -> Result<Option<Located>> {
    let folder = parent.join("iree");
    if !folder.join(MANIFEST).is_file() {
        return Ok(None);
    }
    let manifest = Manifest::load(&folder)?;
    Ok(Some(Located { folder, manifest, from: "the target folder" }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(at: &Path, detail: &str) {
        std::fs::create_dir_all(at).unwrap();
        let text = format!(
            r#"{{"schema":1,"iree":"3.13.0","target":"t","origin":{{"kind":"source",
            "detail":"{detail}"}},"drivers":[],"include":[],"lib":"lib","link":[],
            "compiler":null,"compiler_library":null}}"#
        );
        std::fs::write(at.join(MANIFEST), text).unwrap();
    }

    #[test]
    fn walks_up_from_out_dir() {
        let target = tempfile::tempdir().unwrap();
        let out_dir = target.path().join("debug/build/iree-sys-123/out");
        std::fs::create_dir_all(&out_dir).unwrap();
        assert_eq!(locate_from(&Overrides::default(), &out_dir).unwrap(), None);
        folder(&out_dir.join("iree"), "bundled");
        assert_eq!(locate_from(&Overrides::default(), &out_dir).unwrap(), None);
        folder(&target.path().join("iree"), "target");
        let found = locate_from(&Overrides::default(), &out_dir).unwrap().unwrap();
        assert_eq!(found.folder, target.path().join("iree"));
        assert_eq!(found.from, "the target folder");
    }

    #[test]
    fn the_environment_wins_and_cuda_wins_over_dist() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["iree", "dist", "cuda"] {
            folder(&dir.path().join(name), name);
        }
        let detail = |overrides: &Overrides| {
            let found = locate_in_target(overrides, dir.path()).unwrap().unwrap();
            found.manifest.origin.detail
        };
        let mut overrides = Overrides::default();
        assert_eq!(detail(&overrides), "iree");
        overrides.dist = Some(dir.path().join("dist"));
        assert_eq!(detail(&overrides), "dist");
        overrides.cuda_home = Some(dir.path().join("cuda"));
        assert_eq!(detail(&overrides), "cuda");
        overrides.cuda_home = Some(PathBuf::new());
        assert_eq!(detail(&overrides), "dist");
    }

    #[test]
    fn an_override_that_names_nothing_is_an_error_that_names_it() {
        let dir = tempfile::tempdir().unwrap();
        let overrides =
            Overrides { cuda_home: None, dist: Some(dir.path().join("no-such-folder")) };
        let error = locate_in_target(&overrides, dir.path()).unwrap_err().to_string();
        assert!(error.contains(DIST_VAR) && error.contains("no-such-folder"), "{error}");
    }

    #[test]
    fn a_relative_path_is_refused_wherever_it_would_lead() {
        let overrides = Overrides { cuda_home: None, dist: Some("target/iree".into()) };
        let error = locate_in_target(&overrides, Path::new("/")).unwrap_err().to_string();
        assert!(error.contains(DIST_VAR) && error.contains("absolute"), "{error}");
    }
}

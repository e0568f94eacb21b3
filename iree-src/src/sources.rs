//! Where the sources of IREE's runtime are: inside a Cargo package that cargo has brought.
//!
//! The package is a plain dependency (feature `bundled`) of which nothing is compiled, so that
//! cargo fetches, verifies, vendors and audits it. Cargo does not tell a build script where a
//! dependency without `links` lies, so what rustc wrote of compiling it is read, and then the
//! folders are tried in which cargo puts packages.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use crate::{Error, IREE_VERSION, Result, prebuilt};

/// The environment variable that names a tree of IREE's sources, or a folder with the package.
pub const SOURCE_DIR_VAR: &str = "IREE_SOURCE_DIR";

/// The package that holds the sources, in its folder `iree`; as `Cargo.toml` has it.
const PACKAGE: &str = "eerie-sys";
const VERSION: &str = "0.5.0";

/// A tree of IREE's sources.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sources {
    /// The folder with `runtime/`.
    pub dir: PathBuf,
    /// What it is, for the manifest.
    pub detail: String,
}

/// Where to look.
#[derive(Debug, Clone, Default)]
pub struct Places {
    /// What the user named with [`SOURCE_DIR_VAR`].
    pub named: Option<PathBuf>,
    /// The running program, which was compiled beside the package.
    pub program: Option<PathBuf>,
    /// The folder of a package that may have come from the same place: the registry's, a vendored
    /// one.
    pub package: Option<PathBuf>,
    /// Cargo's home folder.
    pub cargo_home: Option<PathBuf>,
}

impl Places {
    /// As the environment of a build script, or of a program that cargo runs, has them.
    pub fn from_env() -> Places {
        let var = |name| env::var_os(name).filter(|it| !it.is_empty()).map(PathBuf::from);
        Places {
            named: var(SOURCE_DIR_VAR),
            program: env::current_exe().ok(),
            package: var("CARGO_MANIFEST_DIR"),
            cargo_home: var("CARGO_HOME").or_else(|| Some(env::home_dir()?.join(".cargo"))),
        }
    }

    /// Finds the tree.
    ///
    /// # Errors
    ///
    /// [`Error::Request`] when it is nowhere, or when what the user named is not one of
    /// [`IREE_VERSION`].
    pub fn find(&self) -> Result<Sources> {
        if let Some(named) = &self.named {
            // Build scripts run in the folder of their package, which is not where the user is.
            if named.is_relative() {
                let what = format!("{SOURCE_DIR_VAR} has to be an absolute path, not {named:?}");
                return Err(Error::Request(what));
            }
            // The package's folder or the tree in it, whichever is at hand.
            let inside = named.join("iree");
            let dir = if inside.join("runtime").is_dir() { inside } else { named.clone() };
            check_version(&dir, IREE_VERSION)?;
            return Ok(Sources { detail: dir.display().to_string(), dir });
        }
        let found = self.candidates().into_iter().find(|folder| is_the_package(folder));
        let Some(folder) = found else {
            return Err(Error::Request(format!(
                "the package {PACKAGE} {VERSION}, which has IREE's sources, was not found where \
                 cargo puts packages; set {SOURCE_DIR_VAR} to its folder (`cargo metadata` says \
                 where it is)"
            )));
        };
        let dir = folder.join("iree");
        check_version(&dir, IREE_VERSION)?;
        Ok(Sources { dir, detail: format!("{PACKAGE} {VERSION}") })
    }

    fn candidates(&self) -> Vec<PathBuf> {
        let names = [format!("{PACKAGE}-{VERSION}"), PACKAGE.to_owned()];
        let mut found = Vec::new();
        for profile in self.program.iter().flat_map(|path| path.ancestors().skip(1).take(4)) {
            found.extend(compiled_in(&profile.join("deps")));
        }
        if let Some(registry) = self.package.as_deref().and_then(Path::parent) {
            found.extend(names.iter().map(|name| registry.join(name)));
        }
        let registries = self.cargo_home.iter().map(|home| home.join("registry/src"));
        for registry in registries.filter_map(|path| fs::read_dir(path).ok()).flatten().flatten() {
            found.push(registry.path().join(&names[0]));
        }
        found
    }
}

/// The folders from which cargo compiled the package, as rustc's lists of inputs in `deps` say.
fn compiled_in(deps: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(deps) else { return Vec::new() };
    let start = format!("{}-", PACKAGE.replace('-', "_"));
    let lists = entries.flatten().map(|entry| entry.path()).filter(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(&start) && name.ends_with(".d")
    });
    let texts = lists.filter_map(|path| fs::read_to_string(path).ok());
    texts.filter_map(|text| listed_folder(&text)).collect()
}

/// The folder of the package whose `src/lib.rs` a list of inputs (in make's syntax) names.
fn listed_folder(text: &str) -> Option<PathBuf> {
    let input = text.lines().find_map(|line| line.strip_suffix(':'))?.replace("\\ ", " ");
    let folder = Path::new(&input).parent()?.parent()?;
    folder.is_absolute().then(|| folder.to_owned())
}

fn is_the_package(folder: &Path) -> bool {
    let Ok(text) = fs::read_to_string(folder.join("Cargo.toml")) else { return false };
    let has = |key: &str, value: &str| text.lines().any(|it| it == format!("{key} = \"{value}\""));
    has("name", PACKAGE) && has("version", VERSION)
}

/// Refuses a tree of another version than `version`: the bindings would not match its C types.
///
/// # Errors
///
/// [`Error::Request`].
pub fn check_version(tree: &Path, version: &str) -> Result<()> {
    let path = tree.join("runtime/version.json");
    let text = fs::read_to_string(&path).map_err(|e| {
        Error::Request(format!("{} is not an IREE source tree: {e}", tree.display()))
    })?;
    let json: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    let found = json["package-version"].as_str().unwrap_or("of no known version");
    if prebuilt::release(found) == version {
        return Ok(());
    }
    Err(Error::Request(format!(
        "{} is IREE {found}, but {version} is needed: check out the tag v{version}",
        tree.display()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(folder: &Path, version: &str, iree: &str) {
        fs::create_dir_all(folder.join("iree/runtime")).unwrap();
        let text = format!("[package]\nname = \"{PACKAGE}\"\nversion = \"{version}\"\n");
        fs::write(folder.join("Cargo.toml"), text).unwrap();
        let text = format!(r#"{{"package-version": "{iree}"}}"#);
        fs::write(folder.join("iree/runtime/version.json"), text).unwrap();
    }

    #[test]
    fn is_found_where_rustc_compiled_it() {
        let dir = tempfile::tempdir().unwrap();
        let (target, vendored) = (dir.path().join("target"), dir.path().join("my vendor/it"));
        package(&vendored, VERSION, "3.13.0.dev");
        let deps = target.join("release/deps");
        fs::create_dir_all(&deps).unwrap();
        let input = vendored.join("src/lib.rs").display().to_string().replace(' ', "\\ ");
        let list = format!("x.d: {input}\n\nlib.rmeta: {input}\n\n{input}:\n");
        fs::write(deps.join("eerie_sys-0123.d"), list).unwrap();
        let program = Some(target.join("release/build/iree-sys-4567/build-script-main"));
        let found = Places { program, ..Places::default() }.find().unwrap();
        assert_eq!(found.dir, vendored.join("iree"));
    }

    #[test]
    fn is_found_beside_us_and_in_cargos_home() {
        let dir = tempfile::tempdir().unwrap();
        let registry = dir.path().join("registry/src/index");
        let at = |places: Places| places.find().map(|it| it.dir).map_err(|e| e.to_string());
        let home = || Places { cargo_home: Some(dir.path().into()), ..Places::default() };
        assert!(at(home()).unwrap_err().contains(SOURCE_DIR_VAR));
        // One of another version is another package.
        package(&registry.join("eerie-sys-0.5.0"), "0.4.0", "3.13.0");
        at(home()).unwrap_err();
        package(&registry.join("eerie-sys-0.5.0"), VERSION, "3.13.0");
        assert_eq!(at(home()).unwrap(), registry.join("eerie-sys-0.5.0/iree"));

        let vendor = dir.path().join("vendor");
        package(&vendor.join("eerie-sys"), VERSION, "3.13.0");
        let package = Some(vendor.join("iree-sys"));
        let beside = at(Places { package, ..home() });
        assert_eq!(beside.unwrap(), vendor.join("eerie-sys/iree"));
    }

    #[test]
    fn what_the_user_names_wins_and_is_checked() {
        let dir = tempfile::tempdir().unwrap();
        let named = |path: &Path| Places { named: Some(path.into()), ..Places::default() };
        let refused = named(Path::new("iree")).find().unwrap_err().to_string();
        assert!(refused.contains("absolute"), "{refused}");
        let refused = named(dir.path()).find().unwrap_err().to_string();
        assert!(refused.contains("not an IREE source tree"), "{refused}");
        package(dir.path(), VERSION, "3.12.0.dev");
        let refused = named(dir.path()).find().unwrap_err().to_string();
        assert!(refused.contains("3.12.0.dev") && refused.contains("v3.13.0"), "{refused}");
        package(dir.path(), VERSION, "3.13.0.dev");
        let tree = dir.path().join("iree");
        assert_eq!(named(dir.path()).find().unwrap().dir, tree);
        assert_eq!(named(&tree).find().unwrap().dir, tree);
    }
}

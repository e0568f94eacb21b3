//! Feature `bundled`: the runtime is built by the build script that needs it.

use std::ffi::OsString;
use std::path::Path;
use std::{env, fs};

use crate::cmake::BuildTools;
use crate::runtime::Build;
use crate::sources::{Places, SOURCE_DIR_VAR};
use crate::{
    Error, IREE_VERSION, Located, Manifest, Origin, OriginKind, Result, host_target,
    install_compiler, mend,
};

/// The environment variables that decide what [`build`] makes: where one has changed, it is made
/// again.
pub const VARIABLES: [&str; 4] = ["CMAKE", "CC", "CXX", SOURCE_DIR_VAR];

/// Builds the runtime for `target` into a folder in `out` (cargo's `OUT_DIR`), unless it is there,
/// whole, and was made with the same [`VARIABLES`]; `compiler` brings the compiler too, which is all
/// that uses the network. Takes a minute, once.
///
/// # Errors
///
/// Any [`Error`]; what is missing on the machine is named.
pub fn build(out: &Path, target: &str, jobs: Option<usize>, compiler: bool) -> Result<Located> {
    if target != host_target() {
        return Err(Error::Request(format!(
            "IREE for {target} cannot be built on {}: build it there, and name its folder in {}",
            host_target(),
            crate::DIST_VAR
        )));
    }
    let folder = out.join("iree");
    let from = "the feature `bundled`";
    let made_with = out.join("made-with");
    let variables = variables(|name| env::var_os(name));
    if fs::read_to_string(&made_with).is_ok_and(|it| it == variables)
        && let Some(manifest) = usable(&folder, compiler)
    {
        return Ok(Located { folder, manifest, from });
    }
    let tools = BuildTools::from_env()?;
    let sources = Places::from_env().find()?;
    let scratch = out.join("build");
    for path in [&folder, &scratch] {
        remove(path)?;
        fs::create_dir_all(path).map_err(Error::io("create", path))?;
    }
    let source = mend::copy(&sources.dir, scratch.join("iree"), IREE_VERSION)?;
    let build = Build {
        source: &source,
        version: IREE_VERSION,
        tools: &tools,
        jobs,
        cuda: None,
        vulkan: false,
        vm_trace: false,
        sanitizer: None,
        cross: None,
        scratch: &scratch,
    };
    build.configure()?;
    build.compile(|_, _| {})?;
    let built = build.install(&folder)?;
    let compiler = compiler
        .then(|| install_compiler(target, &folder, &scratch))
        .transpose()?
        .unwrap_or_default();
    // 100 MB that nobody needs again.
    remove(&scratch)?;
    let manifest = Manifest {
        schema: 1,
        iree: IREE_VERSION.to_owned(),
        target: target.to_owned(),
        origin: Origin { kind: OriginKind::Registry, detail: sources.detail },
        sanitizer: None,
        mended: mend::names(IREE_VERSION),
        drivers: built.drivers,
        vm_trace: false,
        include: vec!["include".into()],
        lib: "lib".into(),
        link: built.link,
        compiler: compiler.program,
        compiler_library: compiler.library,
        fetched: compiler.fetched,
        files: Vec::new(),
    };
    fs::write(&made_with, variables).map_err(Error::io("write", &made_with))?;
    // Last: a folder without it is made again.
    manifest.save(&folder)?;
    Ok(Located { folder, manifest, from })
}

/// The manifest of a folder that need not be made again.
fn usable(folder: &Path, compiler: bool) -> Option<Manifest> {
    let manifest = Manifest::load(folder).ok()?;
    let usable = manifest.iree == IREE_VERSION
        && manifest.mended == mend::names(IREE_VERSION)
        && manifest.missing(folder).is_empty()
        && (!compiler || manifest.compiler.is_some());
    usable.then_some(manifest)
}

/// [`VARIABLES`] with their values, a line for each; an empty one is as good as none.
fn variables(value: impl Fn(&str) -> Option<OsString>) -> String {
    let value = |name| value(name).filter(|it| !it.is_empty());
    VARIABLES.map(|name| format!("{name}={:?}\n", value(name))).concat()
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::io("remove", path)(e)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_made_again_when_it_is_damaged_or_lacks_mends() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("iree");
        let mended = mend::names(IREE_VERSION).join("\",\"");
        let manifest = |mended: &str| {
            let text = format!(
                r#"{{"schema":1,"iree":"{IREE_VERSION}","target":"t","origin":{{"kind":"registry",
                "detail":"d"}},"mended":["{mended}"],"drivers":[],"include":["include"],
                "lib":"lib","link":[],"compiler":null,"compiler_library":null}}"#
            );
            fs::write(folder.join(crate::MANIFEST), text).unwrap();
        };
        for part in ["include", "lib"] {
            fs::create_dir_all(folder.join(part)).unwrap();
        }
        assert!(usable(&folder, false).is_none(), "there is no manifest");
        manifest(&mended);
        assert!(usable(&folder, false).is_some());
        assert!(usable(&folder, true).is_none(), "there is no compiler");
        manifest("another");
        assert!(usable(&folder, false).is_none(), "the mends are others");
        manifest(&mended);
        fs::remove_dir(folder.join("include")).unwrap();
        assert!(usable(&folder, false).is_none(), "the headers are gone");
    }

    #[test]
    fn each_variable_counts_and_an_empty_one_is_none() {
        let none = variables(|_| None);
        assert_eq!(variables(|_| Some(OsString::new())), none);
        for name in VARIABLES {
            let with = |value: &str| variables(|it| (it == name).then(|| value.into()));
            assert_ne!(with("a"), none, "{name}");
            assert_ne!(with("a"), with("b"), "{name}");
        }
    }
}

//! Finds the IREE folder (`IREE_CUDA_HOME`, `IREE_DIST`, else `iree/` in the target folder), or
//! builds one, and links what its `iree.json` lists.

#[cfg(feature = "bindgen")]
mod bindings;
mod link;

use std::env;
use std::path::{Path, PathBuf};

use iree_src::{CUDA_HOME_VAR, DIST_VAR, IREE_VERSION, Located, Overrides};

fn main() {
    println!("cargo::rerun-if-changed=build");
    let folder = |name| PathBuf::from(env::var_os(name).expect("cargo sets it"));
    let (out, package) = (folder("OUT_DIR"), folder("CARGO_MANIFEST_DIR"));
    // Documentation is made without a network, and of crates that are not linked.
    println!("cargo::rerun-if-env-changed=DOCS_RS");
    let documenting = env::var_os("DOCS_RS").is_some();
    let linking = env::var_os("CARGO_FEATURE_LINK").is_some() && !documenting;
    match find(&out, &package, linking) {
        Ok(Some(found)) => {
            link::metadata(&found);
            link::watch(&found, &out);
            #[cfg(feature = "bindgen")]
            generate_bindings(&found, &out.join("bindings.rs"));
            if linking {
                link::libraries(&found);
            }
        }
        Ok(None) if linking || cfg!(feature = "bindgen") => link::missing(&package),
        Ok(None) => {}
        // Whatever was named has to be right, or nothing that is asked of it is.
        Err(reason) if linking || cfg!(feature = "bindgen") => {
            // Cargo's protocol has one line for one message, and stderr is not shown.
            for line in reason.lines().filter(|line| !line.trim().is_empty()) {
                println!("cargo::error={line}");
            }
        }
        Err(_) => {}
    }
}

/// The folder to build against; `None` when there is none, the reason when none that fits.
fn find(out: &Path, package: &Path, linking: bool) -> Result<Option<Located>, String> {
    let variable = |name| {
        println!("cargo::rerun-if-env-changed={name}");
        env::var_os(name).map(PathBuf::from)
    };
    let overrides = Overrides { cuda_home: variable(CUDA_HOME_VAR), dist: variable(DIST_VAR) };
    let found = iree_src::locate_from(&overrides, out).map_err(|e| e.to_string())?;
    let target = env::var("TARGET").expect("cargo sets TARGET");
    let Some(found) = found else {
        return bundled(out, &target, linking);
    };
    let (folder, from, manifest) = (found.folder.display(), found.from, &found.manifest);
    let wrong = if manifest.target != target {
        format!("is for {}, and the build for {target}", manifest.target)
    } else if manifest.iree != IREE_VERSION {
        format!("holds IREE {}, and the bindings are for {IREE_VERSION}", manifest.iree)
    } else if let Some(missing) = manifest.missing(&found.folder).first() {
        format!("lacks {}", missing.display())
    } else {
        return Ok(Some(found));
    };
    Err(format!("{folder} (from {from}) {wrong}: {}", link::remedy(&found, package, &target)))
}

/// Feature `bundled`: the runtime is built here.
#[cfg(feature = "bundled")]
fn bundled(out: &Path, target: &str, linking: bool) -> Result<Option<Located>, String> {
    if !linking {
        return Ok(None);
    }
    for name in iree_src::bundled::VARIABLES {
        println!("cargo::rerun-if-env-changed={name}");
    }
    let jobs = env::var("NUM_JOBS").ok().and_then(|it| it.parse().ok());
    let compiler = cfg!(feature = "bundled-compiler");
    let built = iree_src::bundled::build(out, target, jobs, compiler);
    built.map(Some).map_err(|e| format!("the feature `bundled` cannot build IREE: {e}"))
}

#[cfg(not(feature = "bundled"))]
fn bundled(_: &Path, _: &str, _: bool) -> Result<Option<Located>, String> {
    Ok(None)
}

#[cfg(feature = "bindgen")]
fn generate_bindings(found: &Located, out: &Path) {
    println!("cargo::rerun-if-changed=wrapper.h");
    let include: Vec<PathBuf> =
        found.manifest.include.iter().map(|dir| found.folder.join(dir)).collect();
    let compiler = bindings::compiler_include();
    let text = bindings::generate("wrapper.h".as_ref(), &include, compiler.as_deref())
        .unwrap_or_else(|e| panic!("generating bindings: {e}"));
    std::fs::write(out, text).expect("writing the bindings to OUT_DIR");
}

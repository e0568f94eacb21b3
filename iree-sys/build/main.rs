//! Finds the IREE folder (`IREE_CUDA_HOME`, `IREE_DIST`, else `iree/` in the target folder) and
//! links what its `iree.json` lists.

#[cfg(feature = "bindgen")]
mod bindings;
#[cfg(feature = "bundled")]
mod bundled;
mod link;

use std::env;
use std::path::PathBuf;

use iree_src::{CUDA_HOME_VAR, DIST_VAR, Located, Overrides};

fn main() {
    println!("cargo:rerun-if-changed=build");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let linking = env::var_os("CARGO_FEATURE_LINK").is_some();
    match find(&out) {
        Ok(found) => {
            link::metadata(&found);
            #[cfg(feature = "bindgen")]
            generate_bindings(&found, &out.join("bindings.rs"));
            if linking {
                link::libraries(&found);
            }
        }
        Err(reason) => {
            if cfg!(feature = "bindgen") {
                panic!("feature `bindgen` needs the headers of an IREE folder: {reason}");
            }
            if linking {
                link::missing(&reason);
            }
        }
    }
}

/// The folder to build against; the reason when there is none, or none that fits.
fn find(out: &std::path::Path) -> Result<Located, String> {
    let variable = |name| {
        println!("cargo:rerun-if-env-changed={name}");
        env::var_os(name).map(PathBuf::from)
    };
    let overrides = Overrides { cuda_home: variable(CUDA_HOME_VAR), dist: variable(DIST_VAR) };
    // `target/` is four levels above `target/PROFILE/build/PACKAGE/out`.
    if let Some(target) = out.ancestors().nth(4) {
        println!("cargo:rerun-if-changed={}", target.join("iree/iree.json").display());
    }
    let found = iree_src::locate_from(&overrides, out).map_err(|e| e.to_string())?;
    #[cfg(feature = "bundled")]
    let found = match found {
        Some(found) => Some(found),
        None => Some(bundled::build(out)?),
    };
    let found = found.ok_or("no IREE folder in the target folder")?;
    println!("cargo:rerun-if-changed={}", found.folder.join(iree_src::MANIFEST).display());
    let target = env::var("TARGET").expect("cargo sets TARGET");
    if found.manifest.target != target {
        return Err(format!("{} is for {}", found.folder.display(), found.manifest.target));
    }
    if found.manifest.iree != iree_src::IREE_VERSION {
        return Err(format!(
            "{} holds IREE {}, and the bindings are for {}",
            found.folder.display(),
            found.manifest.iree,
            iree_src::IREE_VERSION
        ));
    }
    Ok(found)
}

#[cfg(feature = "bindgen")]
fn generate_bindings(found: &Located, out: &std::path::Path) {
    println!("cargo:rerun-if-changed=wrapper.h");
    let include: Vec<PathBuf> =
        found.manifest.include.iter().map(|dir| found.folder.join(dir)).collect();
    let compiler = bindings::compiler_include();
    let text = bindings::generate("wrapper.h".as_ref(), &include, compiler.as_deref())
        .unwrap_or_else(|e| panic!("generating bindings: {e}"));
    std::fs::write(out, text).expect("writing the bindings to OUT_DIR");
}

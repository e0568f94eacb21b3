//! What cargo is told: link lines, and metadata for the build scripts of dependents.

use std::path::Path;

use iree_src::{CUDA_HOME_VAR, DIST_VAR, IREE_VERSION, Located, mend};

/// `DEP_IREE_ROOT`, `DEP_IREE_INCLUDE`, `DEP_IREE_VERSION`, `DEP_IREE_DRIVERS`,
/// `DEP_IREE_VM_TRACE`, `DEP_IREE_MENDED` for dependents.
pub fn metadata(found: &Located) {
    let (root, manifest) = (&found.folder, &found.manifest);
    let include = manifest.include.iter().map(|dir| root.join(dir).display().to_string());
    println!("cargo::metadata=root={}", root.display());
    println!("cargo::metadata=include={}", include.collect::<Vec<_>>().join(":"));
    println!("cargo::metadata=version={}", manifest.iree);
    println!("cargo::metadata=drivers={}", manifest.drivers.join(","));
    println!("cargo::metadata=vm_trace={}", manifest.vm_trace);
    println!("cargo::metadata=mended={}", manifest.mended.join(","));
}

/// Links the libraries of the manifest, in its order: static archives resolve left to right.
pub fn libraries(found: &Located) {
    let folder = found.folder.display();
    println!(
        "cargo::rustc-link-search=native={}",
        found.folder.join(&found.manifest.lib).display()
    );
    for library in &found.manifest.link {
        println!("cargo::rustc-link-lib={library}");
    }
    if !found.manifest.has_parameters() {
        println!(
            "cargo::warning={folder} has no libraries for parameters: programs that take them do \
             not link; the feature `bundled` builds a runtime that has"
        );
    }
    let lacking = mend::lacking(&found.manifest.mended, IREE_VERSION);
    if !lacking.is_empty() {
        println!(
            "cargo::warning={folder} has faults of IREE {IREE_VERSION} that are known ({}; \
             `iree_src::mend` says what they do): the feature `bundled`, or `cargo xtask fetch-iree`, \
             builds a runtime without them",
            lacking.join(", ")
        );
    }
}

/// What the build script looks at again before the next build: files that are there, and that no
/// build script wrote, or cargo would run this one every time.
pub fn watch(found: &Located, out: &Path) {
    let files = [iree_src::MANIFEST.into()].into_iter().chain(found.manifest.archives());
    for path in files.map(|file| found.folder.join(file)) {
        if path.exists() && !path.starts_with(out) {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
}

/// The one sentence that a build without IREE ends with, before anything is linked.
pub fn missing(package: &Path) {
    println!(
        "cargo::error=there is no IREE {IREE_VERSION} to link: {}, or set {DIST_VAR} to the absolute \
         path of an IREE folder; to type-check only, build without the feature `link`",
        make_one(package)
    );
}

/// What to do about a folder that does not fit. It comes before what the workspace fetches and what
/// the feature `bundled` builds, so it has to go for them.
pub fn remedy(found: &Located, package: &Path, target: &str) -> String {
    let named = [CUDA_HOME_VAR, DIST_VAR].contains(&found.from);
    let (name, give_up) = if named {
        (found.from, format!("unset {}", found.from))
    } else {
        (DIST_VAR, "remove this folder".to_owned())
    };
    format!(
        "set {name} to the absolute path of a folder of IREE {IREE_VERSION} for {target}, or \
         {give_up} and {}",
        make_one(package)
    )
}

fn make_one(package: &Path) -> String {
    let xtask = package.join("../xtask/Cargo.toml").exists();
    let here = if xtask { "run `cargo xtask fetch-iree` in its workspace, or " } else { "" };
    format!(
        "{here}turn on the feature `bundled` of iree-rt or iree-sys, which builds it with cmake"
    )
}

//! What cargo is told: link lines, and metadata for the build scripts of dependents.

use crate::folder::Folder;

/// `DEP_IREE_ROOT`, `DEP_IREE_INCLUDE`, `DEP_IREE_VERSION`, `DEP_IREE_DRIVERS` for dependents.
pub fn metadata(folder: &Folder) {
    let include: Vec<String> = folder
        .manifest
        .include
        .iter()
        .map(|dir| folder.root.join(dir).display().to_string())
        .collect();
    println!("cargo:root={}", folder.root.display());
    println!("cargo:include={}", include.join(":"));
    println!("cargo:version={}", folder.manifest.iree);
    println!("cargo:drivers={}", folder.manifest.drivers.join(","));
}

/// Links the libraries of the manifest, in its order: static archives resolve left to right.
pub fn libraries(folder: &Folder) {
    println!("cargo:rustc-link-search=native={}", folder.root.join(&folder.manifest.lib).display());
    for library in &folder.manifest.link {
        println!("cargo:rustc-link-lib={library}");
    }
}

/// Type-checking goes on; a link then fails on a library whose name says what to do.
pub fn missing(reason: &str) {
    println!(
        "cargo:warning=IREE not found ({reason}): run `cargo xtask fetch-iree`, or set IREE_DIST \
         to a folder that it made"
    );
    println!("cargo:rustc-link-lib=dylib=IREE_not_found__run_cargo_xtask_fetch-iree");
}

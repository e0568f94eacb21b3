//! What cargo is told: link lines, and metadata for the build scripts of dependents.

use iree_src::Located;

/// `DEP_IREE_ROOT`, `DEP_IREE_INCLUDE`, `DEP_IREE_VERSION`, `DEP_IREE_DRIVERS`,
/// `DEP_IREE_VM_TRACE`, `DEP_IREE_MENDED` for dependents.
pub fn metadata(found: &Located) {
    let root = std::path::absolute(&found.folder).unwrap_or_else(|_| found.folder.clone());
    let include = found.manifest.include.iter().map(|dir| root.join(dir).display().to_string());
    println!("cargo:root={}", root.display());
    println!("cargo:include={}", include.collect::<Vec<_>>().join(":"));
    println!("cargo:version={}", found.manifest.iree);
    println!("cargo:drivers={}", found.manifest.drivers.join(","));
    println!("cargo:vm_trace={}", found.manifest.vm_trace);
    println!("cargo:mended={}", found.manifest.mended.join(","));
}

/// Links the libraries of the manifest, in its order: static archives resolve left to right.
pub fn libraries(found: &Located) {
    let lib = found.folder.join(&found.manifest.lib);
    println!("cargo:rustc-link-search=native={}", lib.display());
    for library in &found.manifest.link {
        println!("cargo:rustc-link-lib={library}");
    }
    if !found.manifest.has_parameters() {
        println!(
            "cargo:warning={} has no libraries for parameters: programs that take them do not \
             link; `cargo xtask fetch-iree` makes a folder that has",
            found.folder.display()
        );
    }
    for archive in found.manifest.archives() {
        println!("cargo:rerun-if-changed={}", found.folder.join(archive).display());
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

//! Describes a folder that has IREE's files but no `iree.json`: an unpacked upstream archive.
//!
//! Everything is found by name, because the layout of upstream's archives has changed before.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::manifest::host_target;
use crate::parameters::LIBRARIES;
use crate::{IREE_VERSION, Manifest, Origin, OriginKind, manifest::MANIFEST};

const RUNTIME: &str = "libiree_runtime_unified.a";
/// Third-party archives that the runtime library may need, in link order.
const COMPANIONS: [&str; 2] = ["flatcc_parsing", "backtrace"];
/// Driver names and the C function whose presence in the library proves them.
const DRIVERS: [(&str, &str); 7] = [
    ("local-sync", "iree_hal_local_sync_driver_module_register"),
    ("local-task", "iree_hal_local_task_driver_module_register"),
    ("cuda", "iree_hal_cuda_driver_module_register"),
    ("hip", "iree_hal_hip_driver_module_register"),
    ("amdgpu", "iree_hal_amdgpu_driver_module_register"),
    ("vulkan", "iree_hal_vulkan_driver_module_register"),
    ("metal", "iree_hal_metal_driver_module_register"),
];

/// The manifest that `folder` should have, or why it holds no IREE that can be used.
///
/// # Errors
///
/// What is missing, in words. Its version has to be known: bindings of another one read and write
/// memory where that has something else.
pub fn describe(folder: &Path) -> Result<Manifest, String> {
    if !folder.is_dir() {
        return Err("there is no such folder".into());
    }
    let runtime = find(folder, |name| name == RUNTIME)
        .ok_or_else(|| format!("there is neither iree.json nor {RUNTIME} in it"))?;
    let lib = parent(&runtime);
    let header = find(folder, |name| name == "api.h").and_then(|_| include_root(folder));
    let include = header.ok_or("the header iree/runtime/api.h is not in it")?;
    let compiler = find(folder, |name| name == "iree-compile");
    let compiler_library =
        find(folder, |name| name == "libIREECompiler.so" || name == "libIREECompiler.dylib");
    let version = compiler.as_ref().and_then(|path| compiler_version(&folder.join(path)));
    let iree = version.map(|it| release(&it).to_owned()).ok_or_else(|| {
        format!(
            "its version cannot be told, as it has neither {MANIFEST} nor an iree-compile that runs, \
             and only {IREE_VERSION} can be linked"
        )
    })?;
    let parameters = LIBRARIES.iter().map(|(name, _)| *name);
    let mut link = Vec::new();
    for name in parameters.chain(["iree_runtime_unified"]).chain(COMPANIONS) {
        if folder.join(&lib).join(format!("lib{name}.a")).exists() {
            link.push(format!("static={name}"));
        }
    }
    link.extend(system_libraries());
    Ok(Manifest {
        schema: 1,
        iree,
        target: host_target(),
        origin: Origin { kind: OriginKind::Dist, detail: "unpacked by hand".into() },
        sanitizer: None,
        mended: Vec::new(),
        drivers: drivers(&folder.join(&runtime))?,
        vm_trace: false,
        include: vec![include],
        lib,
        link,
        compiler,
        compiler_library,
        fetched: Vec::new(),
        files: Vec::new(),
    })
}

/// What the runtime library needs of the system, in link order.
pub fn system_libraries() -> impl Iterator<Item = String> {
    ["m", "pthread", "dl"].into_iter().map(|name| format!("dylib={name}"))
}

/// The drivers inside a runtime library, told by the symbols in it.
///
/// # Errors
///
/// When it cannot be read, in words.
pub fn drivers(library: &Path) -> Result<Vec<String>, String> {
    let bytes = fs::read(library).map_err(|e| format!("cannot read {}: {e}", library.display()))?;
    let has = |symbol: &str| contains(&bytes, symbol.as_bytes());
    let found = DRIVERS.iter().filter(|(_, symbol)| has(symbol));
    Ok(found.map(|(driver, _)| (*driver).to_owned()).collect())
}

/// The version that `iree-compile --version` prints, for example `3.13.0rc20261016`.
pub fn compiler_version(compiler: &Path) -> Option<String> {
    let output = Command::new(compiler).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (_, rest) = text.split_once("IREE compiler version ")?;
    let version = rest.split_whitespace().next()?;
    output.status.success().then(|| version.to_owned())
}

/// The release that a version belongs to: `3.13.0` of `3.13.0rc20261016` or `3.13.0.dev`.
///
/// Upstream's release builds still print the release candidate they were promoted from.
pub fn release(version: &str) -> &str {
    let end = version.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap_or(version.len());
    version[..end].trim_end_matches('.')
}

fn contains(bytes: &[u8], needle: &[u8]) -> bool {
    let first = needle[0];
    let mut rest = bytes;
    while let Some(at) = rest.iter().position(|&b| b == first) {
        rest = &rest[at..];
        if rest.starts_with(needle) {
            return true;
        }
        rest = &rest[1..];
    }
    false
}

fn parent(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

fn include_root(folder: &Path) -> Option<PathBuf> {
    let mut roots = Vec::new();
    walk(folder, Path::new(""), 0, &mut |path| {
        if path.ends_with("iree/runtime/api.h") {
            roots.extend(path.ancestors().nth(3).map(Path::to_owned));
        }
    });
    let root = roots.into_iter().min_by_key(|root| root.components().count())?;
    Some(if root.as_os_str().is_empty() { PathBuf::from(".") } else { root })
}

/// The file nearest to the top whose name `matches`, relative to `folder`.
fn find(folder: &Path, matches: impl Fn(&str) -> bool) -> Option<PathBuf> {
    let mut found: Option<PathBuf> = None;
    walk(folder, Path::new(""), 0, &mut |path| {
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        let nearer =
            found.as_ref().is_none_or(|f| path.components().count() < f.components().count());
        if matches(name) && nearer {
            found = Some(path.to_owned());
        }
    });
    found
}

fn walk(root: &Path, at: &Path, depth: usize, visit: &mut dyn FnMut(&Path)) {
    // Deeper than any file that is looked for, and an end to link cycles.
    if depth > 8 {
        return;
    }
    let Ok(entries) = fs::read_dir(root.join(at)) else { return };
    for entry in entries.flatten() {
        let path = at.join(entry.file_name());
        match root.join(&path).metadata() {
            Ok(meta) if meta.is_dir() => walk(root, &path, depth + 1, visit),
            Ok(_) => visit(&path),
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(root: &Path, path: &str, bytes: &[u8]) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    /// An `iree-compile` that only says its version.
    #[cfg(unix)]
    fn compiler(root: &Path, version: &str) {
        use std::os::unix::fs::PermissionsExt;
        let script = format!("#!/bin/sh\necho IREE compiler version {version} @ x\n");
        touch(root, "bin/iree-compile", script.as_bytes());
        let path = root.join("bin/iree-compile");
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn finds_the_parts_by_name_wherever_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let archive = b"!<arch>\niree_iree_hal_cuda_driver_module_register\0";
        touch(dir.path(), "lib64/libiree_runtime_unified.a", archive);
        touch(dir.path(), "lib64/libflatcc_parsing.a", b"");
        touch(dir.path(), "lib64/libiree_io_parameter_index.a", b"");
        touch(dir.path(), "lib64/libIREECompiler.so", b"");
        touch(dir.path(), "inc/iree/runtime/api.h", b"");
        let unknown = describe(dir.path()).unwrap_err();
        assert!(unknown.contains("version cannot be told"), "{unknown}");
        compiler(dir.path(), "3.13.0rc20261016");
        let manifest = describe(dir.path()).unwrap();
        assert_eq!((&*manifest.iree, manifest.mended.len()), ("3.13.0", 0));
        assert_eq!(manifest.lib, Path::new("lib64"));
        assert_eq!(manifest.include, [Path::new("inc")]);
        assert_eq!(manifest.drivers, ["cuda"]);
        let archives = ["iree_io_parameter_index", "iree_runtime_unified", "flatcc_parsing"];
        assert_eq!(manifest.link[..3], archives.map(|name| format!("static={name}")));
        assert!(!manifest.has_parameters());
        assert_eq!(manifest.compiler_library.unwrap(), Path::new("lib64/libIREECompiler.so"));
    }

    #[test]
    fn a_release_is_its_digits() {
        for version in ["3.13.0", "3.13.0rc20261016", "3.13.0.dev"] {
            assert_eq!(release(version), "3.13.0");
        }
        assert_ne!(release("3.13.1"), "3.13.0");
    }

    #[test]
    fn says_what_is_missing() {
        let dir = tempfile::tempdir().unwrap();
        assert!(describe(dir.path()).unwrap_err().contains(RUNTIME));
        touch(dir.path(), "lib/libiree_runtime_unified.a", b"");
        assert!(describe(dir.path()).unwrap_err().contains("iree/runtime/api.h"));
    }
}

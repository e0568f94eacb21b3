//! What the public API promises by its types.

use std::fs;
use std::path::Path;

use iree_rt::{
    AsyncSession, Buffer, BufferView, Call, Canceller, Compiler, Device, DeviceGroup, Error, Fence,
    Function, Instance, Kernel, Kernels, Mapped, MappedMut, Module, NativeModule, Outputs,
    ParameterIndex, Pending, Reached, Reference, Semaphore, Session, SessionBuilder, Signal,
    Tensor, Upload, Value,
};

fn send<T: Send>() {}
fn shared<T: Send + Sync>() {}

#[test]
fn threads_share_what_they_may() {
    shared::<Error>();
    shared::<&'static Instance>();
    shared::<(Device, DeviceGroup, Kernel, Kernels)>();
    shared::<(Buffer, BufferView, Tensor<f32>, Mapped<'_, f32>, MappedMut<'_, f32>, Upload)>();
    shared::<(Module, Function, ParameterIndex, Compiler)>();
    shared::<(Fence, Semaphore, Signal, Canceller, Reference, Value, Outputs, Call)>();
    send::<(Session, SessionBuilder, NativeModule, AsyncSession, Pending, Reached)>();
}

/// Types of `iree-sys` are only in what the feature `raw` adds.
#[test]
fn safe_signatures_have_no_raw_types() {
    let mut seen = 0;
    visit(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut |path, text| {
        for start in ["pub fn ", "pub unsafe fn ", "pub const ", "pub type ", "pub use iree_sys"] {
            for (at, _) in text.match_indices(start) {
                let line = text[..at].lines().count();
                let signature = text[at..].split(['{', ';', '=']).next().unwrap();
                let constant = signature.trim_end() == "pub use iree_sys::IREE_VERSION";
                let raw = signature.contains("sys::") && !constant;
                assert!(!raw, "{}:{line}: {signature}", path.display());
                seen += 1;
            }
        }
    });
    assert!(seen > 150, "only {seen} signatures found");
}

/// A folder of sources uses itself and those before it in `lib.rs`.
#[test]
fn no_folder_uses_a_later_one() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let root = fs::read_to_string(sources.join("lib.rs")).unwrap();
    let modules = root.lines().filter_map(|line| {
        let line = line.strip_prefix("pub ").unwrap_or(line);
        line.strip_prefix("mod ")?.strip_suffix(';')
    });
    let folders: Vec<_> = modules.filter(|name| sources.join(name).is_dir()).collect();
    let layer = |name: &str| folders.iter().position(|folder| *folder == name);
    assert!(folders.len() >= 8, "{folders:?}");
    let mut seen = 0;
    visit(&sources, &mut |path, text| {
        let inside = path.strip_prefix(&sources).unwrap();
        let Some(own) = layer(inside.iter().next().unwrap().to_str().unwrap()) else { return };
        for (line, code) in (1..).zip(text.lines()) {
            let code = code.split("//").next().unwrap();
            for used in code.split("crate::").skip(1) {
                let name = used.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap();
                // What the root exports again is used by its folder, too.
                let fits = layer(name).is_some_and(|layer| layer <= own);
                assert!(fits, "{}:{line}: `crate::{name}` in {folders:?}", inside.display());
                seen += 1;
            }
        }
    });
    assert!(seen > 300, "only {seen} uses found");
}

/// Variants and fields may be added without breaking who matches on them or makes them.
#[test]
fn what_may_grow_says_so() {
    let mut seen = 0;
    visit(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut |path, text| {
        for start in ["\npub enum ", "\npub struct "] {
            for (at, _) in text.match_indices(start) {
                let item = text[at + 1..].split("\n}").next().unwrap();
                let name = item.lines().next().unwrap();
                let fields = name.ends_with('{') && item.contains("\n    pub ");
                if !start.contains("enum") && !fields {
                    continue;
                }
                // Its attributes are the lines above, down from the last that is empty or a comment.
                let above = text[..at].lines().rev().take_while(|line| !line.starts_with("///"));
                let marked = above.take(5).any(|line| line == "#[non_exhaustive]");
                assert!(marked, "{}: {name}", path.display());
                seen += 1;
            }
        }
    });
    assert!(seen >= 15, "only {seen} types found");
}

fn visit(folder: &Path, look: &mut dyn FnMut(&Path, &str)) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            visit(&path, look);
        } else if path.file_name().unwrap() != "raw.rs" {
            look(&path, &fs::read_to_string(&path).unwrap());
        }
    }
}

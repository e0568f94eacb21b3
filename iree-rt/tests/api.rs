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

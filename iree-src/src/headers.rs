//! Copies the C headers of a source tree into an IREE folder.

use std::fs;
use std::path::Path;

use crate::{Error, Result};

/// Copies the runtime's and the compiler API's headers from the tree `source` to `include`.
pub(crate) fn copy(source: &Path, include: &Path) -> Result<()> {
    copy_tree(&source.join("runtime/src/iree"), &include.join("iree"))?;
    copy_tree(&source.join("compiler/bindings/c/iree"), &include.join("iree"))
}

fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    for entry in fs::read_dir(from).map_err(Error::io("read", from))? {
        let entry = entry.map_err(Error::io("read", from))?;
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if path.is_dir() {
            copy_tree(&path, &target)?;
        } else if is_header(&path) {
            fs::create_dir_all(to).map_err(Error::io("create", to))?;
            fs::copy(&path, &target).map_err(Error::io("write", &target))?;
        }
    }
    Ok(())
}

// Public headers include tables that are named .inc and .inl.
fn is_header(path: &Path) -> bool {
    matches!(path.extension().and_then(|e| e.to_str()), Some("h" | "inc" | "inl"))
}

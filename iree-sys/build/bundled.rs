//! Feature `bundled`: no folder is needed beforehand, the runtime is built here.

use std::path::Path;

use iree_src::request::{Compiler, Machine, Request};
use iree_src::{Located, fetch};

/// Builds the runtime (without a compiler) into `out`; takes a minute, once.
pub fn build(out: &Path) -> Result<Located, String> {
    let folder = out.join("iree");
    let mut request = Request::new(&folder, Machine::from_env());
    request.compiler = Compiler::None;
    request.progress = iree_src::progress::Progress::Lines;
    let outcome = fetch::fetch(&request).map_err(|e| format!("building IREE: {e}"))?;
    Ok(Located { folder, manifest: outcome.manifest().clone(), from: "the feature `bundled`" })
}

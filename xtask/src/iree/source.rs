//! Where the sources come from: the package that cargo has brought (origin `registry`), a checkout of
//! the user's, or a clone of the version's tag (origin `source`).

use std::path::{Path, PathBuf};
use std::process::Command;

use iree_src::sources::Places;
use iree_src::{cmake, mend, process};

use super::request::Request;
use super::{Error, Result};

/// Where IREE is developed.
pub const UPSTREAM: &str = "https://github.com/iree-org/iree.git";
/// The submodule that a runtime without drivers of GPUs and tests is built from.
const FLATCC: &str = "third_party/flatcc";
/// That of the Vulkan driver.
const VULKAN_HEADERS: &str = "third_party/vulkan_headers";

/// An IREE source tree.
pub struct SourceTree {
    /// The folder with `runtime/`.
    pub dir: PathBuf,
    /// What it is, for the manifest.
    pub detail: String,
    /// Whether the faults of its version are mended.
    pub mended: bool,
}

/// A mended copy, in `scratch`, of the tree in the package that `iree-src` depends on.
pub fn registry(request: &Request, scratch: &Path) -> Result<SourceTree> {
    let found = Places::from_env().find()?;
    let step = request.progress.spinner("copy the IREE sources");
    let dir = mend::copy(&found.dir, scratch.join("iree"), &request.version)?;
    step.done();
    Ok(SourceTree { dir, detail: found.detail, mended: true })
}

/// The checkout `dir`, else a clone made in `scratch`.
pub fn tree(
    request: &Request,
    dir: Option<&Path>,
    git: Option<&str>,
    scratch: &Path,
) -> Result<SourceTree> {
    if let Some(dir) = dir {
        let dir = std::path::absolute(dir).map_err(Error::io("resolve", dir))?;
        let detail = checkout_detail(request, &dir);
        return Ok(SourceTree { dir, detail, mended: false });
    }
    if request.offline {
        return Err(Error::Offline { what: "a clone of IREE".into() });
    }
    if cmake::find(&request.machine.path, "git").is_none() {
        return Err(iree_src::Error::Tool {
            tool: "git".into(),
            why: "not on PATH".into(),
            fix: "install it, or give a checkout with --source-dir".into(),
        }
        .into());
    }
    let url = git.unwrap_or(UPSTREAM);
    let tag = format!("v{}", request.version);
    let clone = scratch.join("checkout");
    let step = request.progress.spinner("clone IREE");
    let log = scratch.join("clone.log");
    let mut command = Command::new("git");
    command.args(["clone", "--quiet", "--depth=1", "--branch", &tag, url]).arg(&clone);
    // Never stop to ask for a password.
    command.env("GIT_TERMINAL_PROMPT", "0");
    process::logged(&format!("cloning {url} at {tag}"), &mut command, &log, |_| {})?;
    let mut command = Command::new("git");
    command.arg("-C").arg(&clone).args(["submodule", "update", "--init", "--depth=1", "--quiet"]);
    command.arg(FLATCC).args(request.vulkan.then_some(VULKAN_HEADERS));
    command.env("GIT_TERMINAL_PROMPT", "0");
    process::logged("fetching IREE's submodules", &mut command, &log, |_| {})?;
    step.done();
    let detail = clone_detail(url, &request.version) + &commit(request, &clone);
    mend::in_place(&clone, &request.version)?;
    Ok(SourceTree { dir: clone, detail, mended: true })
}

/// What the manifest says of the checkout `dir`, an absolute path, as it is now.
pub fn checkout_detail(request: &Request, dir: &Path) -> String {
    format!("{}{}", dir.display(), commit(request, dir))
}

/// What the manifest says of a clone of `version` from `url`, before its commit.
pub fn clone_detail(url: &str, version: &str) -> String {
    format!("{url} v{version}")
}

/// ` at <commit>` when `dir` is itself a git checkout.
fn commit(request: &Request, dir: &Path) -> String {
    let hash = git(request, dir, &["rev-parse", "HEAD"]);
    hash.map_or_else(String::new, |hash| format!(" at {}", hash.trim()))
}

/// Whether files of the checkout `dir` are not as its commit has them: what was built of it before may be older.
pub fn is_changed(request: &Request, dir: &Path) -> bool {
    let status = ["status", "--porcelain", "--untracked-files=no", "--ignore-submodules=untracked"];
    git(request, dir, &status).is_some_and(|changes| !changes.trim().is_empty())
}

/// What git says to `arguments`, when `dir` is itself a checkout of its.
fn git(request: &Request, dir: &Path, arguments: &[&str]) -> Option<String> {
    let git: Option<PathBuf> = cmake::find(&request.machine.path, "git");
    let mut command = Command::new(git.filter(|_| dir.join(".git").exists())?);
    command.arg("-C").arg(dir).args(arguments);
    process::output("git", &mut command).ok()
}

//! The origin `source`: a checkout of IREE, the user's or a clone of the version's tag.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::registry::SourceTree;
use crate::request::Request;
use crate::{Error, Result, mend, process, tools};

const UPSTREAM: &str = "https://github.com/iree-org/iree.git";
/// The submodules that a runtime without graphics drivers and tests is built from.
const SUBMODULES: [&str; 1] = ["third_party/flatcc"];

/// The checkout `dir`, else a clone made in `scratch`.
pub(crate) fn tree(
    request: &Request,
    dir: Option<&Path>,
    git: Option<&str>,
    scratch: &Path,
) -> Result<SourceTree> {
    if let Some(dir) = dir {
        let dir = std::path::absolute(dir).map_err(Error::io("resolve", dir))?;
        let detail = format!("{}{}", dir.display(), commit(request, &dir));
        return Ok(SourceTree { dir, detail, fetched: Vec::new(), mended: false });
    }
    if request.offline {
        return Err(Error::Offline { what: "a clone of IREE".into() });
    }
    if tools::find(&request.machine, "git").is_none() {
        return Err(Error::Tool {
            tool: "git".into(),
            why: "not on PATH".into(),
            fix: "install it, or give a checkout with --source-dir".into(),
        });
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
    command.args(SUBMODULES).env("GIT_TERMINAL_PROMPT", "0");
    process::logged("fetching IREE's submodules", &mut command, &log, |_| {})?;
    step.done();
    let detail = format!("{url} {tag}{}", commit(request, &clone));
    mend::in_place(&clone, &request.version)?;
    Ok(SourceTree { dir: clone, detail, fetched: Vec::new(), mended: true })
}

/// ` at <commit>` when `dir` is itself a git checkout.
fn commit(request: &Request, dir: &Path) -> String {
    let git: Option<PathBuf> = tools::find(&request.machine, "git");
    let Some(git) = git.filter(|_| dir.join(".git").exists()) else { return String::new() };
    let mut command = Command::new(git);
    command.arg("-C").arg(dir).args(["rev-parse", "HEAD"]);
    process::output("git rev-parse", &mut command)
        .map_or_else(|_| String::new(), |hash| format!(" at {}", hash.trim()))
}

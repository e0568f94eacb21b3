//! Roots of other systems: Debian's, as debootstrap makes them, and what is left of one that has nothing
//! but its C library.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::tree;
use crate::workspace;

/// The oldest that packages are tried on: glibc 2.31.
pub const OLDEST: &str = "bullseye";

/// What the tests of wheels need beside what every Debian has.
const INCLUDED: &str = "python3-pip,python3-venv";

/// A Debian called `suite`, brought into a folder below `folder` unless it is there.
pub fn debian(folder: &Path, suite: &str) -> Result<PathBuf> {
    let root = folder.join("roots").join(suite);
    if root.exists() {
        return Ok(root);
    }
    eprintln!("==> Debian {suite}");
    let staged = folder.join("roots").join(format!(".{suite}"));
    remove(&staged)?;
    fs::create_dir_all(&staged)?;
    let mut debootstrap = Command::new("debootstrap");
    debootstrap.args(["--variant=minbase", "--include", INCLUDED, suite]).arg(&staged);
    workspace::run(&mut debootstrap).context(
        "root and Debian's debootstrap are needed; without --check, `--libstdcxx ROOT` names another \
         system whose C++ library the compiler is given",
    )?;
    fs::rename(&staged, &root)?;
    Ok(root)
}

/// A copy of the root `from`, in `to`, to install things in.
pub fn copy(from: &Path, to: &Path) -> Result<()> {
    workspace::run(Command::new("cp").args(["-a", "--reflink=auto"]).arg(from).arg(to))
}

/// Makes, in `to`, a root with the C library of the Debian in `debian`, `/dev/null` and nothing else; with
/// `shell`, also with `/bin/sh`.
pub fn bare(debian: &Path, to: &Path, shell: bool) -> Result<()> {
    let lists = debian.join("var/lib/dpkg/info");
    let arch = if std::env::consts::ARCH == "aarch64" { "arm64" } else { "amd64" };
    let list = lists.join(format!("libc6:{arch}.list"));
    let list = fs::read_to_string(&list).with_context(|| list.display().to_string())?;
    let mut names: Vec<_> = list.lines().filter(|name| name.contains(".so")).collect();
    ensure!(!names.is_empty(), "{} lists no library of libc6", lists.display());
    if shell {
        names.extend(["/bin/sh", "/bin/dash"]);
    }
    // Links of /, where they are, have to be there before files are put behind them.
    for name in ["/lib", "/lib64", "/bin"].into_iter().chain(names) {
        let name = name.trim_start_matches('/');
        let (from, to) = (debian.join(name), to.join(name));
        if let Ok(target) = fs::read_link(&from) {
            link(&target, &to)?;
        } else if from.is_file() {
            tree::copy(&from, &to)?;
        }
    }
    for folder in ["dev", "proc", "tmp"] {
        fs::create_dir_all(to.join(folder))?;
    }
    workspace::run(
        Command::new("mknod").args(["-m", "666"]).arg(to.join("dev/null")).args(["c", "1", "3"]),
    )
}

/// Makes the link `to`, and the folder that it leads to, if it is one of /.
fn link(target: &Path, to: &Path) -> Result<()> {
    let parent = to.parent().context("a link lies in a folder")?;
    fs::create_dir_all(parent)?;
    if target.extension().is_none() && target.starts_with("usr") {
        fs::create_dir_all(parent.join(target))?;
    }
    #[cfg(unix)]
    std::os::unix::fs::symlink(target, to).with_context(|| to.display().to_string())?;
    Ok(())
}

/// `program` in the root `root`, with `/proc`, which tells programs where they lie, and with nothing of
/// this environment. Its process is the one that is started here, and what is mounted goes with it.
pub fn command(root: &Path, program: &str) -> Command {
    const ENTER: &str = r#"mount -t proc proc "$0/proc" && exec chroot "$0" "$@""#;
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", ENTER]).arg(root).arg(program).env_clear();
    command.env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin").env("HOME", "/tmp/home");
    command
}

/// Removes a folder that need not be there.
pub fn remove(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| folder.display().to_string())
        }
        _ => Ok(()),
    }
}

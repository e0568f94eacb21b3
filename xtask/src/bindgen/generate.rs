//! Runs bindgen and compares.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};

use crate::{fetch_iree, flags, workspace};

#[path = "../../../iree-sys/build/bindings.rs"]
mod bindings;

pub fn run(flags: &flags::Bindgen) -> Result<()> {
    let iree = fetch_iree::ensure(&flags.network)?;
    let include: Vec<PathBuf> =
        iree.manifest.include.iter().map(|path| iree.folder.join(path)).collect();
    let sys = workspace::root().join("iree-sys");
    let (header, output) = (sys.join("wrapper.h"), sys.join("src/bindings.rs"));
    let made = bindings::generate(&header, &include, bindings::compiler_include().as_deref())
        .map_err(|why| anyhow!("cannot make bindings of {}: {why}", header.display()))?;
    let old = std::fs::read_to_string(&output).unwrap_or_default();
    let shown = Path::new("iree-sys/src/bindings.rs");
    if made == old {
        println!("{} is up to date", shown.display());
        return Ok(());
    }
    if flags.check {
        bail!(
            "{} is not what the headers of IREE {} give ({}); run `cargo xtask bindgen`",
            shown.display(),
            iree.manifest.iree,
            first_difference(&old, &made)
        );
    }
    std::fs::write(&output, &made).with_context(|| format!("cannot write {output:?}"))?;
    println!("{} is written", shown.display());
    Ok(())
}

fn first_difference(old: &str, new: &str) -> String {
    let mut lines = old.lines().zip(new.lines()).enumerate();
    match lines.find(|(_, (old, new))| old != new) {
        Some((at, (old, new))) => format!("line {}: `{old}` is now `{new}`", at + 1),
        None => format!("{} lines instead of {}", old.lines().count(), new.lines().count()),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use clap::Parser;

    use super::super::{LIBCLANG_VAR, chosen, pinned};
    use super::*;
    use crate::flags::{Task, Xtask};

    /// As `cargo xtask bindgen --check`, in another process where libclang is the pinned one.
    #[test]
    fn what_is_checked_in_is_what_the_headers_give() {
        const HERE: &str = "bindgen::generate::tests::what_is_checked_in_is_what_the_headers_give";
        let Task::Bindgen(flags) = Xtask::parse_from(["xtask", "bindgen", "--check"]).task else {
            panic!("another task");
        };
        if chosen().is_some() {
            return run(&flags).unwrap();
        }
        let mut test = Command::new(std::env::current_exe().unwrap());
        test.args(["--exact", HERE, "--nocapture"]).env(LIBCLANG_VAR, pinned(&flags).unwrap());
        let output = test.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let ran = output.status.success() && said.contains("is up to date");
        assert!(ran, "{said}{}", String::from_utf8_lossy(&output.stderr));
    }

    #[test]
    fn names_the_first_line_that_differs() {
        assert_eq!(first_difference("a\nb\nc", "a\nx\nc"), "line 2: `b` is now `x`");
        assert_eq!(first_difference("a\n", "a\nb\n"), "1 lines instead of 2");
    }
}

//! A Debian package. The format: deb(5) and deb-control(5).

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result};

use super::archive::compressed;
use super::tree::Tree;
use super::{GLIBC, Release};

/// What it is, in one line.
pub const SUMMARY: &str = "Runs language models, compiled with IREE";
/// What it is, in a few.
pub const DESCRIPTION: &str = "\
iree-llm answers prompts, talks and serves OpenAI's and Anthropic's clients with Llama, Qwen, Gemma,
Phi and other models on CPUs: token for token what Hugging Face transformers generates.";
/// Where it comes from.
pub const HOMEPAGE: &str = env!("CARGO_PKG_REPOSITORY");

/// What the package is called.
pub fn file_name(release: &Release) -> String {
    format!("iree-llm_{}_{}.deb", release.version, arch(release))
}

/// Debian's name of the processor.
fn arch(release: &Release) -> &str {
    match release.arch() {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Writes `tree` as a package that installs it below `/usr`.
pub fn write(tree: &Tree, release: &Release, to: &Path) -> Result<()> {
    let scratch = tempfile::tempdir()?;
    let control = scratch.path().join("control");
    std::fs::write(&control, control_file(tree, release))?;
    let control = Tree::read(scratch.path())?;

    let file = File::create(to).with_context(|| to.display().to_string())?;
    let mut package = ar::Builder::new(BufWriter::new(file));
    let members = [
        ("debian-binary", b"2.0\n".to_vec()),
        ("control.tar.xz", compressed(&control, "", release, Vec::new())?),
        ("data.tar.xz", compressed(&debians(tree), "usr/", release, Vec::new())?),
    ];
    for (name, data) in members {
        let mut header = ar::Header::new(name.into(), data.len() as u64);
        header.set_mode(0o100_644);
        header.set_mtime(release.time);
        package.append(&header, &data[..])?;
    }
    package.into_inner()?.flush()?;
    Ok(())
}

/// The tree with what Debian keeps elsewhere.
fn debians(tree: &Tree) -> Tree {
    let mut tree = tree.clone();
    for file in &mut tree.files {
        file.name = file
            .name
            .replace("share/zsh/site-functions/", "share/zsh/vendor-completions/")
            .replace("share/doc/iree-llm/NOTICE", "share/doc/iree-llm/copyright");
    }
    tree
}

fn control_file(tree: &Tree, release: &Release) -> String {
    let description = DESCRIPTION.replace('\n', "\n ");
    format!(
        "Package: iree-llm\nVersion: {}\nArchitecture: {}\nMaintainer: The iree-llm Authors \
         <iree-llm@users.noreply.github.com>\nInstalled-Size: {}\nDepends: libc6 (>= {}.{})\nSection: \
         science\nPriority: optional\nHomepage: {HOMEPAGE}\nDescription: {SUMMARY}\n {description}\n",
        release.version,
        arch(release),
        tree.bytes().div_ceil(1024),
        GLIBC.0,
        GLIBC.1
    )
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use lzma_rust2::XzReader;

    use super::super::tree::tests::example;
    use super::*;

    #[test]
    fn holds_what_dpkg_reads() {
        let dir = tempfile::tempdir().unwrap();
        let tree = example(&dir.path().join("tree"));
        let target = "aarch64-unknown-linux-gnu".to_owned();
        let release = Release { version: "1.2.3".into(), target, time: 1 };
        let path = dir.path().join(file_name(&release));
        assert!(path.ends_with("iree-llm_1.2.3_arm64.deb"));
        write(&tree, &release, &path).unwrap();
        let mut members = Vec::new();
        let mut package = ar::Archive::new(File::open(&path).unwrap());
        while let Some(entry) = package.next_entry() {
            let mut entry = entry.unwrap();
            let mut data = Vec::new();
            entry.read_to_end(&mut data).unwrap();
            members.push((String::from_utf8_lossy(entry.header().identifier()).into_owned(), data));
        }
        let names: Vec<_> = members.iter().map(|it| it.0.as_str()).collect();
        assert_eq!(names, ["debian-binary", "control.tar.xz", "data.tar.xz"]);
        assert_eq!(members[0].1, b"2.0\n");
        let listed = |data: &[u8]| {
            let mut archive = tar::Archive::new(XzReader::new(data, false));
            let entries = archive.entries().unwrap().map(|entry| {
                let mut entry = entry.unwrap();
                let mut text = String::new();
                entry.read_to_string(&mut text).unwrap();
                (String::from_utf8_lossy(&entry.path_bytes()).into_owned(), text)
            });
            entries.collect::<Vec<_>>()
        };
        let control = listed(&members[1].1);
        assert_eq!((control.len(), control[0].0.as_str()), (1, "control"));
        for line in ["Package: iree-llm", "Architecture: arm64", "Depends: libc6 (>= 2.28)"] {
            assert!(control[0].1.lines().any(|it| it == line), "{line}: {}", control[0].1);
        }
        let data = listed(&members[2].1);
        assert_eq!(data[0].0, "usr/");
        assert!(data.contains(&("usr/bin/run".into(), "#!".into())), "{data:?}");
    }
}
